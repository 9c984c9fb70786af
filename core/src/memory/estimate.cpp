// Combines all parts, stage by stage.
#include <algorithm>

#include "common/argument.h"
#include "memory/checkpointing.h"
#include "memory/parameters.h"
#include "memory/pieces.h"
#include "memory/schedules.h"
#include "memory/setting.h"
#include "memory/stages.h"
#include "smdp/memory.h"

namespace smdp::memory {
namespace {

// Counts each shared tensor once, however many of the rank's pieces use it.
double parameters_of(const Pieces& pieces, const std::vector<Span>& spans) {
  double sum = 0;
  for (const Span& span : spans) {
    for (std::size_t i = span.begin; i < span.end; ++i) sum += pieces.list[i].parameters;
  }
  for (const Tied& group : pieces.tied) {
    double members = 0;
    for (const std::size_t unit : group.units) {
      for (const Span& span : spans) members += unit >= span.begin && unit < span.end ? 1 : 0;
    }
    sum -= std::max(0.0, members - 1) * group.parameters;
  }
  return sum;
}

StageMemory stage_memory(const Pieces& pieces, const std::vector<Span>& spans, const Setting& setting, double in_flight,
                         const StateBytes& states) {
  const Checkpointing checkpointing = parse_checkpointing(setting.checkpointing);
  StageMemory stage;
  stage.in_flight = in_flight;
  const double local = parameters_of(pieces, spans);
  stage.parameters = states.parameters * local;
  stage.gradients = states.gradients * local;
  stage.optimizer = states.optimizer * local;

  double of_one = 0;
  double blocks = 0;
  double backward = 0;
  double gradients = 0;
  double received = 0;
  double gathered = 0;
  double previous = 0;
  double logits = 0;
  const double waiting = runs_all_forwards_first(setting.schedule) ? std::max(1.0, in_flight) : 1;
  for (const Span& span : spans) {
    const Kept layers = kept(pieces.list, span, checkpointing);
    of_one += layers.bytes;
    blocks += layers.blocks;
    backward = std::max(backward, layers.rebuilt);
    for (std::size_t i = span.begin; i < span.end; ++i) {
      const Piece& piece = pieces.list[i];
      stage.embedding += piece.embedding * in_flight;
      logits += piece.logits;
      stage.logits += piece.logits * waiting + piece.logits_extra;
      gradients = std::max(gradients, piece.gradients);
      received = std::max(received, piece.input);
      gathered = std::max(gathered, previous + piece.parameters);
      previous = piece.parameters;
    }
  }
  double resident = in_flight;
  if (setting.offload_activations) {
    // A pipeline moves microbatches, a single stage the blocks of its only one.
    const double kept = static_cast<double>(setting.activation_loading_horizon) + 1;
    resident = std::min(in_flight, setting.pipeline > 1 ? kept : kept / std::max(1.0, blocks));
    stage.host += (in_flight - resident) * of_one;
  }
  stage.activations = of_one * resident;
  backward += gradients;
  // The next microbatch's activation and the current one's gradient.
  if (setting.pipeline > 1) backward += 2 * received;
  // When a layer is recomputed, the head has run backward and its microbatch's logits are freed. When the optimizer
  // runs, everything else is freed as well; an offloaded optimizer casts gradients on the host.
  const double beyond_logits = logits * (waiting - 1) + backward - stage.logits;
  const double copy = setting.offload_optimizer ? 0 : states.copy * local;
  const double beyond_backward = copy - (stage.activations + stage.embedding + stage.logits);
  stage.transients = std::max({0.0, beyond_logits, beyond_backward});

  if (setting.offload_optimizer) {
    stage.host += stage.optimizer;
    stage.optimizer = 0;
  }
  if (setting.data == 1) return stage;
  const StateBytes whole = state_bytes(setting.precision, "none", 1);
  stage.buckets = std::min(2.0 * static_cast<double>(setting.bucket_bytes), whole.wire * local);
  if (setting.sharding == "zero3") {
    stage.unsharded = std::min(gathered, local) * whole.parameters;
  }
  return stage;
}

// A learned table of positions has no row beyond its end.
void check_positions(const Architecture& architecture, const Setting& setting) {
  if (architecture.positions == 0) return;
  const auto check_length = [&](const char* name, std::int64_t length) {
    if (length <= architecture.positions) return;
    refuse(name, std::to_string(length),
           "at most " + std::to_string(architecture.positions) + ", the rows of the model's position embedding");
  };
  check_length("sequence", setting.sequence);
  if (architecture.layers.back().has_cross_attention) check_length("decoder_sequence", setting.decoder_sequence);
}

Estimate estimate_pieces(const Pieces& pieces, const Setting& setting) {
  const std::int64_t degree = setting.sharding_degree == 0 ? setting.data : setting.sharding_degree;
  const StateBytes states = state_bytes(setting.precision, setting.sharding, degree);
  const std::vector<std::vector<Span>> spans = spans_of(pieces, setting);
  Estimate result;
  for (std::int64_t rank = 0; rank < setting.pipeline; ++rank) {
    // Called in any case, because it checks the schedule.
    const double closed = in_flight(setting.schedule, setting.pipeline, rank, setting.microbatches,
                                    setting.virtual_stages, setting.active_microbatches);
    const auto at = static_cast<std::size_t>(rank);
    const double count = setting.in_flight.empty() ? closed : setting.in_flight[at];
    result.stages.push_back(stage_memory(pieces, spans[at], setting, count, states));
    if (result.stages.back().total() > result.peak) {
      result.peak = result.stages.back().total();
      result.peak_stage = at;
    }
  }
  return result;
}

}  // namespace

double StageMemory::total() const {
  return parameters + gradients + optimizer + activations + embedding + logits + transients + buckets + unsharded;
}

bool Estimate::fits(double device_memory, double margin) const {
  check_amount("device_memory", device_memory);
  check_amount("margin", margin, 1);
  return peak <= margin * device_memory;
}

Estimate estimate(const Architecture& architecture, const Setting& setting) {
  check(architecture);
  check(setting);
  Setting known = setting;
  if (architecture.sequence != 0) {
    if (setting.sequence != 0 && setting.sequence != architecture.sequence) {
      refuse("sequence", std::to_string(setting.sequence),
             std::to_string(architecture.sequence) + ", which the model fixes, or 0");
    }
    known.sequence = architecture.sequence;
  }
  check_count("sequence", known.sequence, 1, 1 << 30);
  check_positions(architecture, known);
  return estimate_pieces(pieces_of(architecture, known), known);
}

Estimate estimate(const Trace& trace, const Setting& setting) {
  check(setting);
  if (setting.checkpointing == "selective") {
    refuse("checkpointing", "'selective'",
           "none, each, group_N, contiguous, with a trace, which has no attention scores");
  }
  return estimate_pieces(pieces_of(trace, setting), setting);
}

}  // namespace smdp::memory
