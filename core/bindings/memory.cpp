#include "smdp/memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bind.h"

namespace nb = nanobind;

namespace smdp {

using namespace memory;

namespace {

void bind_architecture(nb::module_& m) {
  nb::class_<Layers>(m, "Layers", "A run of equal transformer layers; smdp/memory.h explains its fields.")
      .def(
          "__init__",
          [](Layers* self, std::int64_t count, std::int64_t hidden, std::int64_t heads, std::int64_t key_value_heads,
             std::int64_t head_size, std::int64_t ffn, bool is_gated, bool is_relu, bool has_cross_attention,
             bool has_query_key_value_bias, bool has_output_bias, bool has_mlp_bias, bool has_dropout,
             std::int64_t norms, std::int64_t norm_width, bool has_unfused_norms, bool has_fp32_softmax,
             bool has_query_key_norm, std::int64_t experts, std::int64_t experts_per_token, std::int64_t shared_ffn,
             std::int64_t extra) {
            new (self) Layers{};
            self->count = count;
            self->hidden = hidden;
            self->heads = heads;
            self->key_value_heads = key_value_heads;
            self->head_size = head_size;
            self->ffn = ffn;
            self->is_gated = is_gated;
            self->is_relu = is_relu;
            self->has_cross_attention = has_cross_attention;
            self->has_query_key_value_bias = has_query_key_value_bias;
            self->has_output_bias = has_output_bias;
            self->has_mlp_bias = has_mlp_bias;
            self->has_dropout = has_dropout;
            self->norms = norms;
            self->norm_width = norm_width;
            self->has_unfused_norms = has_unfused_norms;
            self->has_fp32_softmax = has_fp32_softmax;
            self->has_query_key_norm = has_query_key_norm;
            self->experts = experts;
            self->experts_per_token = experts_per_token;
            self->shared_ffn = shared_ffn;
            self->extra = extra;
          },
          nb::kw_only(), nb::arg("count"), nb::arg("hidden"), nb::arg("heads"), nb::arg("key_value_heads"),
          nb::arg("head_size"), nb::arg("ffn"), nb::arg("is_gated") = Layers{}.is_gated,
          nb::arg("is_relu") = Layers{}.is_relu, nb::arg("has_cross_attention") = Layers{}.has_cross_attention,
          nb::arg("has_query_key_value_bias") = Layers{}.has_query_key_value_bias,
          nb::arg("has_output_bias") = Layers{}.has_output_bias, nb::arg("has_mlp_bias") = Layers{}.has_mlp_bias,
          nb::arg("has_dropout") = Layers{}.has_dropout, nb::arg("norms") = Layers{}.norms,
          nb::arg("norm_width") = Layers{}.norm_width, nb::arg("has_unfused_norms") = Layers{}.has_unfused_norms,
          nb::arg("has_fp32_softmax") = Layers{}.has_fp32_softmax,
          nb::arg("has_query_key_norm") = Layers{}.has_query_key_norm, nb::arg("experts") = Layers{}.experts,
          nb::arg("experts_per_token") = Layers{}.experts_per_token, nb::arg("shared_ffn") = Layers{}.shared_ffn,
          nb::arg("extra") = Layers{}.extra)
      .def_ro("count", &Layers::count)
      .def_ro("hidden", &Layers::hidden)
      .def_ro("heads", &Layers::heads)
      .def_ro("key_value_heads", &Layers::key_value_heads)
      .def_ro("head_size", &Layers::head_size)
      .def_ro("ffn", &Layers::ffn)
      .def_ro("is_gated", &Layers::is_gated)
      .def_ro("is_relu", &Layers::is_relu)
      .def_ro("has_cross_attention", &Layers::has_cross_attention)
      .def_ro("has_query_key_value_bias", &Layers::has_query_key_value_bias)
      .def_ro("has_output_bias", &Layers::has_output_bias)
      .def_ro("has_mlp_bias", &Layers::has_mlp_bias)
      .def_ro("has_dropout", &Layers::has_dropout)
      .def_ro("norms", &Layers::norms)
      .def_ro("norm_width", &Layers::norm_width)
      .def_ro("has_unfused_norms", &Layers::has_unfused_norms)
      .def_ro("has_fp32_softmax", &Layers::has_fp32_softmax)
      .def_ro("has_query_key_norm", &Layers::has_query_key_norm)
      .def_ro("experts", &Layers::experts)
      .def_ro("experts_per_token", &Layers::experts_per_token)
      .def_ro("shared_ffn", &Layers::shared_ffn)
      .def_ro("extra", &Layers::extra);
  nb::class_<Architecture>(m, "Architecture",
                           "A transformer: embedding, layers and head; smdp/memory.h explains its fields.")
      .def(
          "__init__",
          [](Architecture* self, const std::string& name, std::int64_t hidden, std::int64_t vocabulary,
             std::int64_t positions, std::int64_t embedding_extra, bool has_embedding_dropout,
             const std::vector<Layers>& layers, std::int64_t head_extra, std::int64_t outputs, bool is_tied,
             std::int64_t sequence) {
            new (self) Architecture{};
            self->name = name;
            self->hidden = hidden;
            self->vocabulary = vocabulary;
            self->positions = positions;
            self->embedding_extra = embedding_extra;
            self->has_embedding_dropout = has_embedding_dropout;
            self->layers = layers;
            self->head_extra = head_extra;
            self->outputs = outputs;
            self->is_tied = is_tied;
            self->sequence = sequence;
          },
          nb::kw_only(), nb::arg("name") = Architecture{}.name, nb::arg("hidden"),
          nb::arg("vocabulary") = Architecture{}.vocabulary, nb::arg("positions") = Architecture{}.positions,
          nb::arg("embedding_extra") = Architecture{}.embedding_extra,
          nb::arg("has_embedding_dropout") = Architecture{}.has_embedding_dropout, nb::arg("layers"),
          nb::arg("head_extra") = Architecture{}.head_extra, nb::arg("outputs") = Architecture{}.outputs,
          nb::arg("is_tied") = Architecture{}.is_tied, nb::arg("sequence") = Architecture{}.sequence)
      .def_ro("name", &Architecture::name)
      .def_ro("hidden", &Architecture::hidden)
      .def_ro("vocabulary", &Architecture::vocabulary)
      .def_ro("positions", &Architecture::positions)
      .def_ro("embedding_extra", &Architecture::embedding_extra)
      .def_ro("has_embedding_dropout", &Architecture::has_embedding_dropout)
      .def_ro("layers", &Architecture::layers)
      .def_ro("head_extra", &Architecture::head_extra)
      .def_ro("outputs", &Architecture::outputs)
      .def_ro("is_tied", &Architecture::is_tied)
      .def_ro("sequence", &Architecture::sequence);
  m.def(
      "parameters",
      [](nb::handle architecture) {
        return parameters(object_of<Architecture>("architecture", architecture, "an Architecture"));
      },
      nb::arg("architecture").none(), nb::sig("def parameters(architecture: Architecture) -> float"),
      "Returns the number of elements of all parameters.");
  m.def(
      "layer_activations",
      [](nb::handle layer, nb::handle setting) {
        return layer_activations(object_of<Layers>("layer", layer, "a Layers"),
                                 object_of<Setting>("setting", setting, "a Setting"));
      },
      nb::arg("layer").none(), nb::arg("setting").none(),
      nb::sig("def layer_activations(layer: Layers, setting: MemorySetting) -> float"),
      "Returns the bytes of one microbatch that one layer of the run keeps.");
}

void bind_estimate(nb::module_& m) {
  nb::class_<Setting>(m, "MemorySetting", "How a model is trained; smdp/memory.h explains its fields.")
      .def(
          "__init__",
          [](Setting* self, std::int64_t microbatch_size, std::int64_t microbatches, std::int64_t sequence,
             std::int64_t decoder_sequence, std::int64_t pipeline, std::int64_t virtual_stages, std::int64_t tensor,
             std::int64_t data, bool sequence_parallel, const std::string& schedule, std::int64_t active_microbatches,
             const std::string& precision, const std::string& sharding, std::int64_t sharding_degree,
             const std::string& checkpointing, bool flash_attention, bool offload_activations,
             std::int64_t activation_loading_horizon, bool offload_optimizer, std::int64_t bucket_bytes,
             const std::vector<std::int64_t>& stage_sizes, const std::vector<double>& in_flight) {
            new (self) Setting{};
            self->microbatch_size = microbatch_size;
            self->microbatches = microbatches;
            self->sequence = sequence;
            self->decoder_sequence = decoder_sequence;
            self->pipeline = pipeline;
            self->virtual_stages = virtual_stages;
            self->tensor = tensor;
            self->data = data;
            self->sequence_parallel = sequence_parallel;
            self->schedule = schedule;
            self->active_microbatches = active_microbatches;
            self->precision = precision;
            self->sharding = sharding;
            self->sharding_degree = sharding_degree;
            self->checkpointing = checkpointing;
            self->flash_attention = flash_attention;
            self->offload_activations = offload_activations;
            self->activation_loading_horizon = activation_loading_horizon;
            self->offload_optimizer = offload_optimizer;
            self->bucket_bytes = bucket_bytes;
            self->stage_sizes = stage_sizes;
            self->in_flight = in_flight;
          },
          nb::kw_only(), nb::arg("microbatch_size") = Setting{}.microbatch_size,
          nb::arg("microbatches") = Setting{}.microbatches, nb::arg("sequence") = Setting{}.sequence,
          nb::arg("decoder_sequence") = Setting{}.decoder_sequence, nb::arg("pipeline") = Setting{}.pipeline,
          nb::arg("virtual_stages") = Setting{}.virtual_stages, nb::arg("tensor") = Setting{}.tensor,
          nb::arg("data") = Setting{}.data, nb::arg("sequence_parallel") = Setting{}.sequence_parallel,
          nb::arg("schedule") = Setting{}.schedule, nb::arg("active_microbatches") = Setting{}.active_microbatches,
          nb::arg("precision") = Setting{}.precision, nb::arg("sharding") = Setting{}.sharding,
          nb::arg("sharding_degree") = Setting{}.sharding_degree, nb::arg("checkpointing") = Setting{}.checkpointing,
          nb::arg("flash_attention") = Setting{}.flash_attention,
          nb::arg("offload_activations") = Setting{}.offload_activations,
          nb::arg("activation_loading_horizon") = Setting{}.activation_loading_horizon,
          nb::arg("offload_optimizer") = Setting{}.offload_optimizer, nb::arg("bucket_bytes") = Setting{}.bucket_bytes,
          nb::arg("stage_sizes") = Setting{}.stage_sizes, nb::arg("in_flight") = Setting{}.in_flight)
      .def_ro("microbatch_size", &Setting::microbatch_size)
      .def_ro("microbatches", &Setting::microbatches)
      .def_ro("sequence", &Setting::sequence)
      .def_ro("decoder_sequence", &Setting::decoder_sequence)
      .def_ro("pipeline", &Setting::pipeline)
      .def_ro("virtual_stages", &Setting::virtual_stages)
      .def_ro("tensor", &Setting::tensor)
      .def_ro("data", &Setting::data)
      .def_ro("sequence_parallel", &Setting::sequence_parallel)
      .def_ro("schedule", &Setting::schedule)
      .def_ro("active_microbatches", &Setting::active_microbatches)
      .def_ro("precision", &Setting::precision)
      .def_ro("sharding", &Setting::sharding)
      .def_ro("sharding_degree", &Setting::sharding_degree)
      .def_ro("checkpointing", &Setting::checkpointing)
      .def_ro("flash_attention", &Setting::flash_attention)
      .def_ro("offload_activations", &Setting::offload_activations)
      .def_ro("activation_loading_horizon", &Setting::activation_loading_horizon)
      .def_ro("offload_optimizer", &Setting::offload_optimizer)
      .def_ro("bucket_bytes", &Setting::bucket_bytes)
      .def_ro("stage_sizes", &Setting::stage_sizes)
      .def_ro("in_flight", &Setting::in_flight);
  nb::class_<StageMemory>(m, "StageMemory", "Bytes at the peak of one rank of a stage.")
      .def_ro("parameters", &StageMemory::parameters)
      .def_ro("gradients", &StageMemory::gradients)
      .def_ro("optimizer", &StageMemory::optimizer)
      .def_ro("activations", &StageMemory::activations)
      .def_ro("embedding", &StageMemory::embedding)
      .def_ro("logits", &StageMemory::logits)
      .def_ro("transients", &StageMemory::transients)
      .def_ro("buckets", &StageMemory::buckets)
      .def_ro("unsharded", &StageMemory::unsharded)
      .def_ro("host", &StageMemory::host)
      .def_ro("in_flight", &StageMemory::in_flight)
      .def_prop_ro("total", &StageMemory::total);
  nb::class_<Estimate>(m, "MemoryEstimate", "The memory of every pipeline rank, as estimate_memory() returns it.")
      .def_ro("stages", &Estimate::stages)
      .def_ro("peak", &Estimate::peak)
      .def_ro("peak_stage", &Estimate::peak_stage)
      .def(
          "fits",
          [](const Estimate& estimate, nb::handle device_memory, nb::handle margin) {
            return estimate.fits(number_of("device_memory", device_memory), number_of("margin", margin));
          },
          nb::arg("device_memory").none(), nb::kw_only(), nb::arg("margin").none() = 0.8,
          nb::sig("def fits(self, device_memory: float, *, margin: float = 0.8) -> bool"),
          "Returns whether the peak is at most `margin` times the device's bytes.");
  m.def("estimate_memory", nb::overload_cast<const Architecture&, const Setting&>(&estimate), nb::arg("architecture"),
        nb::arg("setting"));
  m.def(
      "estimate_trace_memory",
      [](const std::vector<std::tuple<double, double, double>>& units,
         const std::vector<std::pair<double, std::vector<std::size_t>>>& tied, std::int64_t microbatch_size,
         const Setting& setting) {
        Trace trace;
        trace.microbatch_size = microbatch_size;
        for (const auto& [elements, activations, cut] : units) trace.units.push_back({elements, activations, cut});
        for (const auto& [elements, members] : tied) trace.tied.push_back({elements, members});
        return estimate(trace, setting);
      },
      nb::arg("units"), nb::arg("tied"), nb::arg("microbatch_size"), nb::arg("setting"),
      "`units` lists (elements of parameters, bytes of activations, bytes of the cut behind it), `tied` lists "
      "(elements, units).");
}

}  // namespace

void bind_memory(nb::module_& m) {
  bind_architecture(m);
  bind_estimate(m);
  nb::class_<StateBytes>(m, "StateBytes", "Bytes per parameter of the states that a rank holds.")
      .def_ro("parameters", &StateBytes::parameters)
      .def_ro("gradients", &StateBytes::gradients)
      .def_ro("optimizer", &StateBytes::optimizer)
      .def_ro("copy", &StateBytes::copy)
      .def_ro("wire", &StateBytes::wire)
      .def_prop_ro("sum", &StateBytes::sum);
  m.def(
      "state_bytes",
      [](nb::handle precision, nb::handle sharding, nb::handle degree) {
        return state_bytes(text_of("precision", precision), text_of("sharding", sharding),
                           integer_of("degree", degree));
      },
      nb::arg("precision").none(), nb::arg("sharding").none() = "none", nb::arg("degree").none() = 1,
      nb::sig("def state_bytes(precision: str, sharding: str = 'none', degree: int = 1) -> StateBytes"));
  m.def(
      "even_stages",
      [](nb::handle layers, nb::handle stages) {
        return even_stages(integer_of("layers", layers), integer_of("stages", stages));
      },
      nb::arg("layers").none(), nb::arg("stages").none(),
      nb::sig("def even_stages(layers: int, stages: int) -> list[int]"),
      "Returns the layers per stage, as even as possible; the middle stages get the remainder.");
  m.def(
      "in_flight",
      [](nb::handle schedule, nb::handle pipeline, nb::handle rank, nb::handle microbatches, nb::handle virtual_stages,
         nb::handle active_microbatches) {
        return in_flight(text_of("schedule", schedule), integer_of("pipeline", pipeline), integer_of("rank", rank),
                         integer_of("microbatches", microbatches), integer_of("virtual_stages", virtual_stages),
                         integer_of("active_microbatches", active_microbatches));
      },
      nb::arg("schedule").none(), nb::kw_only(), nb::arg("pipeline").none(), nb::arg("rank").none(),
      nb::arg("microbatches").none(), nb::arg("virtual_stages").none() = 1, nb::arg("active_microbatches").none() = 0,
      nb::sig("def in_flight(schedule: str, *, pipeline: int, rank: int, microbatches: int, virtual_stages: int = 1, "
              "active_microbatches: int = 0) -> float"),
      "Returns the number of microbatches whose activations a pipeline rank holds at its peak.");
}

}  // namespace smdp
