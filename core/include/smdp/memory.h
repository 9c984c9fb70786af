// Estimates by formula how many bytes training takes on every rank of a pipeline. Needs no framework and no device.
//
// Letters: p pipeline, v virtual stages, t tensor, d data, s sequence, b samples of a microbatch, h hidden, a heads.
// Sources: ZeRO (arXiv 1910.02054), PTD-P (2104.04473), selective recomputation (2205.05198), the documentation of
// SageMaker's model parallel library, and DeepSpeed's cold estimators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smdp/export.h"

namespace smdp::memory {

// A run of equal transformer layers.
struct Layers {
  std::int64_t count = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t key_value_heads = 0;  // fewer than `heads`: grouped-query attention
  std::int64_t head_size = 0;
  std::int64_t ffn = 0;              // inner width of the MLP, or of one expert
  bool is_gated = false;             // SwiGLU and similar: three matrices instead of two
  bool is_relu = false;              // keeps one tensor; other activation functions keep two
  bool has_cross_attention = false;  // a second attention, over the output of the layers before the first such one
  bool has_query_key_value_bias = false;
  bool has_output_bias = false;  // of the attention's last matrix
  bool has_mlp_bias = false;
  bool has_dropout = false;  // on attention and on both branches
  std::int64_t norms = 2;
  std::int64_t norm_width = 2;      // parameters of a norm per hidden unit: 2 with a bias, 1 without
  bool has_unfused_norms = false;   // composed of a framework's operators, which also keep the normalized value
  bool has_fp32_softmax = false;    // for 16-bit types, kept beside its cast; only without flash attention
  bool has_query_key_norm = false;  // over head_size, of every query and key
  std::int64_t experts = 0;         // 0: not a mixture of experts
  std::int64_t experts_per_token = 0;
  std::int64_t shared_ffn = 0;  // inner width of a gated expert that processes every token; 0: none
  std::int64_t extra = 0;       // other parameters, replicated on every tensor-parallel rank
};

// A transformer: embedding, layers and head.
struct Architecture {
  std::string name;
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;       // rows of the embedding; 0: none
  std::int64_t positions = 0;        // rows of a learned position embedding, at least a sample's tokens; 0: none
  std::int64_t embedding_extra = 0;  // other parameters of the embedding, replicated on every tensor-parallel rank
  bool has_embedding_dropout = false;
  std::vector<Layers> layers;
  std::int64_t head_extra = 0;  // other parameters of the head: the last norm, a pooler, a classifier
  std::int64_t outputs = 0;     // columns of the logits of every token; 0: not a language model's head
  bool is_tied = false;         // the logits use the embedding's matrix; otherwise their own, outputs x hidden
  std::int64_t sequence = 0;    // tokens of every sample if the model fixes them; 0: it does not
};

// Returns the number of all parameters of an architecture. Throws InvalidArgument.
SMDP_API double parameters(const Architecture& architecture);

// A piece of a traced model; the documentation page on memory describes the trace file.
struct Unit {
  double parameters = 0;   // elements
  double activations = 0;  // bytes of one microbatch kept from forward to backward
  double cut = 0;          // bytes that cross from this unit and the ones before it to the ones behind it
};

// Parameters shared by several units: counted once on every stage that has one of the units.
struct Tied {
  double parameters = 0;
  std::vector<std::size_t> units;
};

struct Trace {
  std::vector<Unit> units;  // in execution order
  std::vector<Tied> tied;
  std::int64_t microbatch_size = 1;  // number of traced samples
};

struct Setting {
  std::int64_t microbatch_size = 1;   // samples that the ranks of one tensor-parallel group process at a time
  std::int64_t microbatches = 1;      // per step
  std::int64_t sequence = 0;          // tokens of a sample; required unless the architecture fixes it
  std::int64_t decoder_sequence = 0;  // of layers with cross-attention; 0: same as sequence
  std::int64_t pipeline = 1;
  std::int64_t virtual_stages = 1;  // per rank; V-shaped schedules have 2
  std::int64_t tensor = 1;
  std::int64_t data = 1;                 // ranks that hold the same pipeline stage and tensor slice (rdp)
  bool sequence_parallel = false;        // also shards what tensor parallelism replicates; SMP's optimize="memory"
  std::string schedule = "1f1b";         // see in_flight()
  std::int64_t active_microbatches = 0;  // for smp_interleaved; 0: pipeline + 2
  std::string precision = "bf16";        // see state_bytes()
  std::string sharding = "none";         // see state_bytes()
  std::int64_t sharding_degree = 0;      // ranks of data that share states; 0: all
  std::string checkpointing = "none";    // none, each, group_N, contiguous, selective
  bool flash_attention = false;          // the matrix of attention scores is not kept
  bool offload_activations = false;      // what backward needs waits in host memory or on a disk
  std::int64_t activation_loading_horizon = 4;  // microbatches, without a pipeline blocks, that are fetched ahead
  bool offload_optimizer = false;               // master weights and moments are kept in host memory or on a disk
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  // of a fusion buffer; two are in use if data > 1
  std::vector<std::int64_t> stage_sizes;  // layers (of a trace: units) per virtual stage; empty: even, see stages.h
  std::vector<double> in_flight;          // per rank, e.g. simulated; empty: by the schedule's closed form
};

// Bytes at the peak of one rank of a stage.
struct StageMemory {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;    // master weights and moments
  double activations = 0;  // of layers, or their checkpoints, for all microbatches in flight
  double embedding = 0;    // activations that the embedding keeps
  double logits = 0;       // log-probabilities and two gradients of the logits, in fp32
  // Extra bytes that other moments of a step need beyond the logits' peak: layers recomputed in backward, gradients of
  // activations and received tensors, or the optimizer's copy of the gradients.
  double transients = 0;
  double buckets = 0;  // fusion buffers
  // Parameters gathered for use: the largest two neighbors among embedding, layers and head.
  double unsharded = 0;
  double host = 0;       // in host memory, not included in total()
  double in_flight = 0;  // microbatches, not bytes

  SMDP_API double total() const;
};

struct Estimate {
  std::vector<StageMemory> stages;  // one per pipeline rank
  double peak = 0;                  // the largest total()
  std::size_t peak_stage = 0;       // index of the stage with the peak

  // Returns whether the peak is at most `margin` of the device's bytes. The margin stands for what no formula knows:
  // the device's context, fragmentation and workspaces. All 454 runs with an estimate below 0.8 worked (arXiv
  // 2411.06465).
  SMDP_API bool fits(double device_memory, double margin = 0.8) const;
};

// Estimates the memory of all ranks. Throws InvalidArgument, which names the field, its value and the valid values.
SMDP_API Estimate estimate(const Architecture& architecture, const Setting& setting);
SMDP_API Estimate estimate(const Trace& trace, const Setting& setting);

// Bytes per parameter of the states that a rank holds after sharding, and of the data it sends.
struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double copy = 0;  // fp32 copy of the gradients during the optimizer's step
  double wire = 0;  // of a gradient that is reduced over data: never sharded, not in sum()
  double sum() const { return parameters + gradients + optimizer; }
};

// Returns the bytes of states with Adam. Throws InvalidArgument.
//
// precision: fp32; fp16 or bf16 with 16-bit gradients and fp32 master weights; amp (fp32 weights, cast on use: AWS's
// rule of 20 bytes); megatron_bf16 (gradients in fp32); megatron_fp16 (gradients in both). sharding: none; zero1
// (optimizer states: SMP's shard_optimizer_state); zero2 (also gradients); zero3 (also parameters: FSDP, or SMP's
// sharded data parallelism with its degree).
SMDP_API StateBytes state_bytes(const std::string& precision, const std::string& sharding, std::int64_t degree);

// Returns the number of microbatches whose activations a rank holds at its peak, in units of all its virtual stages. At
// most `microbatches`, and at least what the generated schedule keeps if hops take no time. Throws InvalidArgument for
// an unknown schedule, or a number of virtual stages that the schedule does not have.
SMDP_API double in_flight(const std::string& schedule, std::int64_t pipeline, std::int64_t rank,
                          std::int64_t microbatches, std::int64_t virtual_stages, std::int64_t active_microbatches = 0);

// Returns the number of layers per stage, as even as possible; the middle stages get the remainder. Throws
// InvalidArgument if there are fewer layers than stages.
SMDP_API std::vector<std::int64_t> even_stages(std::int64_t layers, std::int64_t stages);

// Returns the bytes of one microbatch that one layer keeps. Throws InvalidArgument.
SMDP_API double layer_activations(const Layers& layer, const Setting& setting);

}  // namespace smdp::memory
