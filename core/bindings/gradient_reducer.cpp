#include "smdp/gradient_reducer.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "interruption.h"
#include "released.h"
#include "smdp/error.h"

namespace nb = nanobind;

namespace smdp {
namespace {

using Pointer = std::uintptr_t;

}  // namespace

void bind_gradient_reducer(nb::module_& m) {
  using Release = nb::call_guard<Released>;
  using Owned = std::vector<std::tuple<std::size_t, std::size_t>>;
  using Members = std::vector<std::tuple<std::size_t, std::size_t, std::size_t>>;
  nb::class_<ShardedBuffer>(m, "ShardedBuffer", "A fusion buffer of which each rank owns a part.")
      .def_prop_ro("dtype", [](const ShardedBuffer& buffer) { return static_cast<int>(buffer.dtype); })
      .def_ro("count", &ShardedBuffer::count)
      .def_ro("is_alone", &ShardedBuffer::is_alone)
      .def_prop_ro(
          "members",
          [](const ShardedBuffer& buffer) {
            Members members;
            for (const auto& [index, offset, count] : buffer.members) members.emplace_back(index, offset, count);
            return members;
          },
          "Index of each gradient, its offset, and its number of elements.")
      .def_prop_ro(
          "owned",
          [](const ShardedBuffer& buffer) {
            Owned owned;
            for (const auto& [begin, end] : buffer.owned) owned.emplace_back(begin, end);
            return owned;
          },
          "First element and end of each range that this rank owns.");
  nb::class_<ParameterGather>(m, "ParameterGather", "Parameters on their way from the owners of shards to all ranks.")
      .def("ready", &ParameterGather::ready, nb::arg("number"), Release())
      .def(
          "wait_for", [](ParameterGather& gather, std::size_t number) { gather.wait(number, is_interrupted); },
          nb::arg("number"), Release())
      .def(
          "wait", [](ParameterGather& gather) { gather.wait(is_interrupted); }, Release())
      .def("is_there", &ParameterGather::is_there, nb::arg("number"));
  nb::class_<GradientReducer>(m, "GradientReducer", "Averages gradients over a group while the backward pass runs.")
      .def(
          "__init__",
          [](GradientReducer* self, Group& group,
             const std::vector<std::tuple<std::string, std::size_t, int, std::string>>& list,
             const std::string& compression, std::size_t buffer_bytes, double factor, double topk_ratio,
             double topk_momentum, bool compares_names, std::string purpose, std::vector<std::string> replaced,
             const std::string& shards, const std::vector<std::size_t>& whole) {
            GradientReducerOptions options;
            options.compression = parse_compression(compression);
            options.buffer_bytes = buffer_bytes;
            options.factor = factor;
            options.topk_ratio = topk_ratio;
            options.topk_momentum = topk_momentum;
            options.compares_names = compares_names;
            options.purpose = std::move(purpose);
            options.replaced = std::move(replaced);
            options.shards = parse_shard_scope(shards);
            std::vector<Gradient> gradients;
            for (const auto& [name, count, dtype, shape] : list) {
              gradients.push_back({name, count, static_cast<DType>(dtype), shape});
            }
            for (const std::size_t index : whole) {
              if (index >= gradients.size()) {
                throw InvalidArgument("[smdp] GradientReducer: whole= has gradient " + std::to_string(index) +
                                      ", and there are " + std::to_string(gradients.size()) +
                                      ", counted from 0. Pass indices of `gradients`.");
              }
              gradients[index].is_whole = true;
            }
            const Released release;
            new (self) GradientReducer(group, std::move(gradients), options);
          },
          nb::arg("group"), nb::arg("gradients"), nb::arg("compression") = "none",
          nb::arg("buffer_bytes") = GradientReducerOptions{}.buffer_bytes, nb::arg("factor") = 0.0,
          nb::arg("topk_ratio") = GradientReducerOptions{}.topk_ratio, nb::arg("topk_momentum") = 0.0,
          nb::arg("compares_names") = true, nb::arg("purpose") = "", nb::arg("replaced") = std::vector<std::string>(),
          nb::arg("shards") = "none", nb::arg("whole") = std::vector<std::size_t>(),
          "Collective; see gradient_reducer.h. `gradients` lists (name, elements, dtype, shape as text); `whole` the "
          "indices of those that must not be cut.")
      .def(
          "ready",
          [](GradientReducer& reducer, std::size_t index, Pointer data, std::optional<int> device, Pointer event,
             bool is_used) {
            if (!device) return reducer.ready(index, reinterpret_cast<void*>(data), is_used);
            reducer.ready(index, reinterpret_cast<void*>(data), *device, reinterpret_cast<void*>(event), is_used);
          },
          nb::arg("index"), nb::arg("data"), nb::arg("device") = nb::none(), nb::arg("event") = Pointer{0},
          nb::arg("is_used") = true, Release(),
          "Hands over a gradient. On a CUDA device, it is complete after `event`, a cudaEvent_t; 0: now.")
      .def(
          "sum_into",
          [](GradientReducer& reducer, std::size_t index, Pointer own) {
            reducer.sum_into(index, reinterpret_cast<void*>(own));
          },
          nb::arg("index"), nb::arg("own"), Release(),
          "Lets the means that this rank owns of a gradient go to this memory, range after range. Call it before "
          "`ready()`, for a gradient that is alone in its buffer.")
      .def("finish", &GradientReducer::finish, Release())
      .def(
          "wait",
          [](GradientReducer& reducer, std::optional<int> device, Pointer stream) {
            if (!device) return reducer.wait(is_interrupted);
            reducer.wait(CudaStream{*device, reinterpret_cast<void*>(stream)}, is_interrupted);
          },
          nb::arg("device") = nb::none(), nb::arg("stream") = Pointer{0}, Release(),
          "Blocks until all means are written back. With `device`, its `stream`, a cudaStream_t, waits for copies to "
          "devices instead.")
      .def(
          "wait_for",
          [](GradientReducer& reducer, std::size_t index, std::optional<int> device, Pointer stream) {
            if (!device) return reducer.wait(index, is_interrupted);
            reducer.wait(index, CudaStream{*device, reinterpret_cast<void*>(stream)}, is_interrupted);
          },
          nb::arg("index"), nb::arg("device") = nb::none(), nb::arg("stream") = Pointer{0}, Release())
      .def(
          "or_over_ranks",
          [](GradientReducer& reducer, Pointer flags, std::size_t count) {
            reducer.or_over_ranks(reinterpret_cast<std::uint8_t*>(flags), count, is_interrupted);
          },
          nb::arg("flags"), nb::arg("count"), Release())
      .def("all_reduce_sparse", &GradientReducer::all_reduce_sparse, nb::arg("index"), nb::arg("sum"), Release())
      .def("is_used", &GradientReducer::is_used, nb::arg("index"))
      .def(
          "read",
          [](const GradientReducer& reducer, std::size_t index, Pointer out) {
            reducer.read(index, reinterpret_cast<void*>(out));
          },
          nb::arg("index"), nb::arg("out"), Release())
      .def("rescale", &GradientReducer::rescale, nb::arg("factor"))
      .def(
          "copy_kept",
          [](const GradientReducer& reducer, std::size_t index, std::size_t part, Pointer out) {
            return reducer.copy_kept(index, part, reinterpret_cast<float*>(out));
          },
          nb::arg("index"), nb::arg("part"), nb::arg("out"), Release())
      .def(
          "set_kept",
          [](GradientReducer& reducer, std::size_t index, std::size_t part, Pointer values) {
            reducer.set_kept(index, part, reinterpret_cast<const float*>(values));
          },
          nb::arg("index"), nb::arg("part"), nb::arg("values"), Release())
      .def_prop_ro("sharded_buffers", &GradientReducer::sharded_buffers, nb::rv_policy::copy)
      .def(
          "means",
          [](const GradientReducer& reducer, std::size_t number) {
            return reinterpret_cast<Pointer>(reducer.means(number));
          },
          nb::arg("number"), "Returns the address of a buffer's means, valid until the next step.")
      .def("has_means", &GradientReducer::has_means, nb::arg("number"),
           "Returns whether this rank has the means that it owns of a buffer. With int8 and topk, only after `wait()`.")
      .def(
          "await_means",
          [](GradientReducer& reducer, std::size_t number) { return reducer.await_means(number, is_interrupted); },
          nb::arg("number"), Release(),
          "Waits for a buffer in the middle of a step. Returns False if it is not on its way yet, and with int8 and "
          "topk.")
      .def(
          "gather",
          [](GradientReducer& reducer, const std::vector<Pointer>& data, bool is_once_per_host) {
            std::vector<void*> pointers;
            for (const Pointer one : data) pointers.push_back(reinterpret_cast<void*>(one));
            return reducer.gather(pointers, is_once_per_host);
          },
          nb::arg("data"), nb::arg("is_once_per_host") = false, nb::keep_alive<0, 1>(), Release(),
          "Begins to send what each rank owns of `data`, by buffer the address of its memory, to all ranks. "
          "is_once_per_host: the ranks of a host have the same memory.")
      .def("abort", &GradientReducer::abort, nb::arg("reason"), Release())
      .def_prop_ro("group_name", &GradientReducer::group_name)
      .def(
          "speed",
          [](const GradientReducer& reducer) {
            const GradientReducer::Speed speed = reducer.speed();
            return std::make_tuple(speed.latency, speed.bandwidth, speed.reduction);
          },
          "What was measured before the first step, the same on all ranks: seconds of the smallest all_reduce, bytes "
          "per second of a large one, bytes per second that a rank reads when it adds.")
      .def("explain", &GradientReducer::explain)
      .def_prop_ro("steps", [](const GradientReducer& reducer) { return reducer.stats().steps; })
      .def_prop_ro("bytes", [](const GradientReducer& reducer) { return reducer.stats().bytes; })
      .def_prop_ro("exposed_seconds", [](const GradientReducer& reducer) { return reducer.stats().exposed_seconds; })
      .def_prop_ro("last_exposed_seconds",
                   [](const GradientReducer& reducer) { return reducer.stats().last_exposed_seconds; });
  nb::class_<GradientCompressor>(m, "GradientCompressor",
                                 "Averages a framework's own fusion buffers, with compression.")
      .def(
          "__init__",
          [](GradientCompressor* self, const std::string& compression, double topk_ratio, double topk_momentum) {
            GradientReducerOptions options;
            options.compression = parse_compression(compression);
            options.topk_ratio = topk_ratio;
            options.topk_momentum = topk_momentum;
            new (self) GradientCompressor(options);
          },
          nb::arg("compression"), nb::arg("topk_ratio") = GradientReducerOptions{}.topk_ratio,
          nb::arg("topk_momentum") = 0.0)
      .def("check_same", &GradientCompressor::check_same, nb::arg("group"), Release())
      .def(
          "all_reduce",
          [](GradientCompressor& compressor, Group& group, std::size_t key, Pointer data, std::size_t count, int dtype,
             const std::string& label, std::shared_ptr<Arrival> arrival) {
            Call call;
            call.async = true;
            call.arrival = std::move(arrival);
            call.label = [label] { return label; };
            return compressor.all_reduce(group, key, reinterpret_cast<void*>(data), count, static_cast<DType>(dtype),
                                         call);
          },
          nb::arg("group"), nb::arg("key"), nb::arg("data"), nb::arg("count"), nb::arg("dtype"), nb::arg("label"),
          nb::arg("arrival") = nb::none(), Release())
      .def("end_step", &GradientCompressor::end_step, nb::arg("counts"), Release())
      .def("rescale", &GradientCompressor::rescale, nb::arg("factor"));
}

}  // namespace smdp
