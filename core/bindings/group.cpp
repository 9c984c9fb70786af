#include "smdp/group.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "error.h"
#include "interruption.h"
#include "released.h"
#include "smdp/error.h"
#include "smdp/internal/group_setup.h"
#include "smdp/sparse_sum.h"

namespace nb = nanobind;

namespace smdp {
namespace {

using Pointer = std::uintptr_t;
using Pointers = std::vector<Pointer>;
using Counts = std::vector<std::size_t>;
using Shape = std::vector<std::int64_t>;

// Drops a reference to a Python object from any thread. A core thread must not take the GIL: Python ends a thread that
// does so during shutdown (or stops it, from 3.14 on), which breaks the C++ on its stack. Such a thread leaves the
// reference to the main thread, which drops it soon, or never if Python is about to end.
void drop(PyObject* object) {
  if (!nb::is_alive()) return;
  if (PyGILState_GetThisThreadState() != nullptr) {
    const nb::gil_scoped_acquire gil;
    Py_DECREF(object);
  } else {
    Py_AddPendingCall(
        [](void* dropped) {
          Py_DECREF(static_cast<PyObject*>(dropped));
          return 0;
        },
        object);
  }
}

// A core thread may drop the last group that uses a store.
std::shared_ptr<Store> share(Store& store) {
  PyObject* const owner = nb::find(store).release().ptr();
  return {&store, [owner](Store*) { drop(owner); }};
}

void* pointer(Pointer value) { return reinterpret_cast<void*>(value); }

Call call(double timeout, bool async, std::shared_ptr<Arrival> arrival = nullptr) {
  Call result;
  result.arrival = std::move(arrival);
  if (timeout >= 0) result.timeout = std::chrono::milliseconds(static_cast<long long>(timeout * 1000));
  result.async = async;
  if (!async) {
    result.interrupted = is_interrupted;
  }
  return result;
}

template <class B>
std::vector<B> buffers(const Pointers& pointers, const Counts& counts) {
  if (pointers.size() != counts.size()) {
    throw InvalidArgument("[smdp] " + std::to_string(pointers.size()) + " buffers were passed with " +
                          std::to_string(counts.size()) + " counts; each buffer needs one count.");
  }
  std::vector<B> all;
  for (std::size_t i = 0; i < pointers.size(); ++i) all.push_back({pointer(pointers[i]), counts[i]});
  return all;
}

DType dtype_of(int value) { return static_cast<DType>(value); }
ReduceOp op_of(int value) { return static_cast<ReduceOp>(value); }

void bind_reductions(nb::class_<Group>& group) {
  using Release = nb::call_guard<Released>;
  group
      .def(
          "all_reduce",
          [](Group& g, Pointer in, Pointer out, const Shape& shape, int dtype, int op, double factor, double timeout,
             bool async, std::shared_ptr<Arrival> arrival) {
            return g.all_reduce(pointer(in), pointer(out), shape, dtype_of(dtype), op_of(op), factor,
                                call(timeout, async, std::move(arrival)));
          },
          nb::arg("in_ptr"), nb::arg("out_ptr"), nb::arg("shape"), nb::arg("dtype"), nb::arg("op"), nb::arg("factor"),
          nb::arg("timeout"), nb::arg("async_op"), nb::arg("arrival") = nb::none(), Release())
      .def(
          "all_reduce_sparse",
          [](Group& g, std::shared_ptr<SparseSum> sum, int op, double factor, double timeout, bool async) {
            return g.all_reduce_sparse(std::move(sum), op_of(op), factor, call(timeout, async));
          },
          nb::arg("sum"), nb::arg("op"), nb::arg("factor"), nb::arg("timeout"), nb::arg("async_op"), Release())
      .def(
          "reduce",
          [](Group& g, Pointer in, Pointer out, const Shape& shape, int dtype, int op, double factor, int root,
             double timeout, bool async) {
            return g.reduce(pointer(in), pointer(out), shape, dtype_of(dtype), op_of(op), root, factor,
                            call(timeout, async));
          },
          nb::arg("in_ptr"), nb::arg("out_ptr"), nb::arg("shape"), nb::arg("dtype"), nb::arg("op"), nb::arg("factor"),
          nb::arg("root"), nb::arg("timeout"), nb::arg("async_op"), Release())
      .def(
          "reduce_scatter",
          [](Group& g, const Pointers& in, const Counts& counts, Pointer out, int dtype, int op, double factor,
             double timeout, bool async, const Shapes& shapes, std::shared_ptr<Arrival> arrival) {
            const std::size_t own =
                counts.size() > static_cast<std::size_t>(g.rank()) ? counts[static_cast<std::size_t>(g.rank())] : 0;
            return g.reduce_scatter(buffers<ConstBuffer>(in, counts), {pointer(out), own}, dtype_of(dtype), op_of(op),
                                    factor, call(timeout, async, std::move(arrival)), shapes);
          },
          nb::arg("in_ptrs"), nb::arg("counts"), nb::arg("out_ptr"), nb::arg("dtype"), nb::arg("op"), nb::arg("factor"),
          nb::arg("timeout"), nb::arg("async_op"), nb::arg("shapes") = Shapes(), nb::arg("arrival") = nb::none(),
          Release());
}

void bind_movements(nb::class_<Group>& group) {
  using Release = nb::call_guard<Released>;
  group
      .def(
          "broadcast",
          [](Group& g, Pointer data, const Shape& shape, int dtype, int root, double timeout, bool async) {
            return g.broadcast(pointer(data), shape, dtype_of(dtype), root, call(timeout, async));
          },
          nb::arg("ptr"), nb::arg("shape"), nb::arg("dtype"), nb::arg("root"), nb::arg("timeout"), nb::arg("async_op"),
          Release())
      .def(
          "all_gather",
          [](Group& g, Pointer in, std::size_t count, const Pointers& out, const Counts& counts, int dtype,
             double timeout, bool async, const Shapes& shapes, std::shared_ptr<Arrival> arrival) {
            return g.all_gather({pointer(in), count}, buffers<Buffer>(out, counts), dtype_of(dtype),
                                call(timeout, async, std::move(arrival)), shapes);
          },
          nb::arg("in_ptr"), nb::arg("in_count"), nb::arg("out_ptrs"), nb::arg("counts"), nb::arg("dtype"),
          nb::arg("timeout"), nb::arg("async_op"), nb::arg("shapes") = Shapes(), nb::arg("arrival") = nb::none(),
          Release())
      .def(
          "all_to_all",
          [](Group& g, const Pointers& in, const Counts& in_counts, const Pointers& out, const Counts& out_counts,
             int dtype, double timeout, bool async, const Shapes& shapes) {
            return g.all_to_all(buffers<ConstBuffer>(in, in_counts), buffers<Buffer>(out, out_counts), dtype_of(dtype),
                                call(timeout, async), shapes);
          },
          nb::arg("in_ptrs"), nb::arg("in_counts"), nb::arg("out_ptrs"), nb::arg("out_counts"), nb::arg("dtype"),
          nb::arg("timeout"), nb::arg("async_op"), nb::arg("shapes") = Shapes(), Release())
      .def(
          "gather",
          [](Group& g, Pointer in, std::size_t count, const Pointers& out, const Counts& counts, int dtype, int root,
             double timeout, bool async, const Shapes& shapes) {
            return g.gather({pointer(in), count}, buffers<Buffer>(out, counts), dtype_of(dtype), root,
                            call(timeout, async), shapes);
          },
          nb::arg("in_ptr"), nb::arg("in_count"), nb::arg("out_ptrs"), nb::arg("counts"), nb::arg("dtype"),
          nb::arg("root"), nb::arg("timeout"), nb::arg("async_op"), nb::arg("shapes") = Shapes(), Release())
      .def(
          "scatter",
          [](Group& g, const Pointers& in, const Counts& counts, Pointer out, std::size_t out_count, int dtype,
             int root, double timeout, bool async, const Shapes& shapes) {
            return g.scatter(buffers<ConstBuffer>(in, counts), {pointer(out), out_count}, dtype_of(dtype), root,
                             call(timeout, async), shapes);
          },
          nb::arg("in_ptrs"), nb::arg("counts"), nb::arg("out_ptr"), nb::arg("out_count"), nb::arg("dtype"),
          nb::arg("root"), nb::arg("timeout"), nb::arg("async_op"), nb::arg("shapes") = Shapes(), Release())
      .def(
          "barrier", [](Group& g, double timeout, bool async) { return g.barrier(call(timeout, async)); },
          nb::arg("timeout"), nb::arg("async_op"), Release());
}

void bind_messages(nb::class_<Group>& group) {
  group
      .def(
          "send",
          [](Group& g, Pointer data, std::size_t count, int dtype, int destination, std::int64_t tag, double timeout,
             bool async) {
            const Group::Handle handle =
                g.send({pointer(data), count}, dtype_of(dtype), destination, tag, call(timeout, async));
            return async ? handle : nullptr;
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("dst"), nb::arg("tag"), nb::arg("timeout"),
          nb::arg("async_op"), nb::call_guard<Released>())
      .def(
          "offer",
          [](Group& g, Pointer data, std::size_t count, int dtype, int destination, std::int64_t tag) {
            return g.offer({pointer(data), count}, dtype_of(dtype), destination, tag);
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("dst"), nb::arg("tag"),
          nb::call_guard<Released>())
      .def("refuse", &Group::refuse, nb::arg("src"), nb::arg("tag"), nb::call_guard<Released>())
      .def("push_offers", &Group::push_offers, nb::call_guard<Released>())
      .def(
          "recv",
          [](Group& g, Pointer data, std::size_t count, int dtype, int source, std::int64_t tag, double timeout,
             bool async) -> nb::object {
            Group::Handle handle;
            {
              const Released release;
              handle = g.recv({pointer(data), count}, dtype_of(dtype), source, tag, call(timeout, async));
            }
            return async ? nb::cast(handle) : nb::cast(handle->source());
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("src"), nb::arg("tag"), nb::arg("timeout"),
          nb::arg("async_op"),
          nb::sig("def recv(self, ptr: int, count: int, dtype: int, src: int, tag: int, "
                  "timeout: float, async_op: bool) -> Handle | int"));
}

}  // namespace

void bind_group(nb::module_& m) {
  nb::class_<Group> group(m, "Group", "A set of ranks that communicate. Buffers are passed as addresses.");
  group
      .def(
          "__init__",
          [](Group* self, Store& store, int rank, int size, const std::string& name, double timeout,
             const std::map<std::string, std::string>& values, const Group* parent, const std::vector<int>& ranks) {
            GroupSetup setup(GroupOptions::from(values));
            setup.name = name;
            if (timeout >= 0) setup.timeout = std::chrono::milliseconds(static_cast<long long>(timeout * 1000));
            setup.interrupted = is_interrupted;
            if (parent != nullptr) setup.obstacle = parent->watch(ranks);
            std::shared_ptr<Store> shared = share(store);
            const Released release;
            new (self) Group(setup, std::move(shared), rank, size);
          },
          nb::arg("store"), nb::arg("rank"), nb::arg("size"), nb::arg("name"), nb::arg("timeout"), nb::arg("options"),
          nb::arg("parent") = nb::none(), nb::arg("ranks") = std::vector<int>())
      .def_prop_ro("id", &Group::id)
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("size", &Group::size)
      .def_prop_ro("name", &Group::name)
      .def_prop_ro("tag", &Group::tag)
      .def("world_rank", &Group::world_rank, nb::arg("rank"))
      .def_prop_ro("local_rank", &Group::local_rank)
      .def_prop_ro("local_size", &Group::local_size)
      .def_prop_ro("host_index", &Group::host_index)
      .def_prop_ro("hosts", &Group::hosts)
      .def_prop_ro("host_names", &Group::host_names)
      .def(
          "split",
          [](Group& g, int color, int key, const std::string& group_name) { return g.split(color, key, group_name); },
          nb::arg("color"), nb::arg("key"), nb::arg("name"), nb::call_guard<Released>())
      .def("shutdown", &Group::shutdown, nb::arg("reason") = "", nb::call_guard<Released>())
      .def("explain", &Group::explain, nb::arg("bytes"))
      .def("abort", &Group::abort, nb::arg("reason"), nb::call_guard<Released>())
      .def(
          "error", [](const Group& g) { return to_python(g.error()); }, nb::sig("def error(self) -> Exception | None"));
  bind_reductions(group);
  bind_movements(group);
  bind_messages(group);
  // Registered once: a forked child must forget the parent's threads.
  ::pthread_atfork(nullptr, nullptr, &Released::forget);
  m.def("threads_inside", &Released::count, "Returns the number of threads in calls that released the GIL.");
  m.def("end", &Released::end, "Makes such calls of all other threads fail from now on. Called when the program ends.");
  m.def("shutdown_all", &shutdown_all, nb::arg("reason") = "", nb::call_guard<Released>());
}

}  // namespace smdp
