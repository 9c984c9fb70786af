#include "smdp/sparse_sum.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bind.h"
#include "released.h"

namespace nb = nanobind;

namespace smdp {
namespace {

using Pointer = std::uintptr_t;
using Shape = std::vector<std::int64_t>;

SparseForm form_of(Shape shape, std::size_t sparse_dims, int dtype) {
  return {std::move(shape), sparse_dims, static_cast<DType>(dtype)};
}

std::int64_t* integers(Pointer value) { return reinterpret_cast<std::int64_t*>(value); }
void* pointer(Pointer value) { return reinterpret_cast<void*>(value); }

// C++ owns it: a core thread that drops the last reference must not take the GIL. nanobind would make it own the
// Python object otherwise.
static_assert(nb::detail::has_shared_from_this_v<SparseSum>);

}  // namespace

void bind_sparse_sum(nb::module_& m) {
  using Release = nb::call_guard<Released>;
  nb::class_<SparseSum>(m, "SparseSum",
                        "This rank's rows of a sparse sum, and then the result. Buffers are passed as addresses.")
      .def(nb::new_([](Shape shape, std::size_t sparse_dims, int dtype, Pointer indices, Pointer values,
                       std::size_t count, bool is_coalesced) {
             const Released release;
             return std::make_shared<SparseSum>(form_of(std::move(shape), sparse_dims, dtype),
                                                SparseRows{integers(indices), pointer(values), count, is_coalesced});
           }),
           nb::arg("shape"), nb::arg("sparse_dims"), nb::arg("dtype"), nb::arg("indices_ptr"), nb::arg("values_ptr"),
           nb::arg("count"), nb::arg("is_coalesced"))
      .def_static(
          "of_dense",
          [](Shape shape, std::size_t sparse_dims, int dtype, Pointer values) {
            return std::make_shared<SparseSum>(form_of(std::move(shape), sparse_dims, dtype), pointer(values));
          },
          nb::arg("shape"), nb::arg("sparse_dims"), nb::arg("dtype"), nb::arg("values_ptr"))
      .def_prop_ro("is_dense", &SparseSum::is_dense)
      .def_prop_ro("count", &SparseSum::count)
      .def(
          "write",
          [](const SparseSum& sum, Pointer indices, Pointer values) { sum.write(integers(indices), pointer(values)); },
          nb::arg("indices_ptr"), nb::arg("values_ptr"), Release());
}

}  // namespace smdp
