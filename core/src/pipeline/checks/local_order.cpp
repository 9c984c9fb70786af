// What a single row shows: a computation comes after what it needs there, a send after its computation, a receive
// before its use, and a reload before its backward. A stage adds its weight gradients in the order of the microbatches,
// reduces them when they are complete, and their norm is reduced after them.
#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/checks/checks.h"

namespace smdp::pipeline {
namespace {

enum Flag : std::uint8_t {
  kForwarded = 1,
  kInputGradient = 2,  // of the stage's input
  kWeight = 4,
  kWasOffloaded = 8,
};

class Reader {
 public:
  Reader(const Schedule& schedule, const DataEdges& edges)
      : schedule_(schedule),
        edges_(edges),
        has_transfers_(has_transfers(schedule)),
        done_(schedule.rank_of.size() * at(schedule.microbatches), 0),
        has_value_(has_transfers_ ? at(edges.count()) * at(schedule.microbatches) : 0, 0),
        has_gradient_(has_value_.size(), 0),
        weights_(schedule.rank_of.size(), 0),
        last_weight_(schedule.rank_of.size(), -1),
        has_norm_(schedule.rows.size(), 0) {}

  // Returns why the action must not be here; empty if it may.
  std::string read(const Action& action, int rank) {
    if (action.kind == ActionKind::kReduceNorm) return why_no_norm(rank);
    if (!is_in_range(schedule_, action)) return "";
    if (action.kind == ActionKind::kReduceGrad || action.kind == ActionKind::kReduceTied) {
      if (has_norm_[at(rank)] != 0)
        return "the gradients' norm has already been reduced; all gradients must be reduced before it";
      return action.kind == ActionKind::kReduceGrad ? why_not_whole(action.stage)
                                                    : why_not_tied_whole(action.other_stage, rank);
    }
    if (!is_compute(action.kind) && !is_transfer(action.kind) && action.kind != ActionKind::kOffload &&
        action.kind != ActionKind::kReload) {
      return "";
    }
    auto& done = done_[at(action.stage) * at(schedule_.microbatches) + at(action.microbatch)];
    const auto need = [&](Flag flag) { return (done & flag) != 0; };
    switch (action.kind) {
      case ActionKind::kForward:
        if (const std::string missing = needs(action, edges_.in(action.stage), true, rank); !missing.empty()) {
          return missing;
        }
        done |= kForwarded;
        return "";
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        if (!need(kForwarded)) return "its forward has not run";
        if (need(kWasOffloaded)) return "its activations are offloaded";
        if (const std::string missing = needs(action, edges_.out(action.stage), false, rank); !missing.empty()) {
          return missing;
        }
        done |= kInputGradient;
        return action.kind == ActionKind::kBackward ? add_weight(action, done) : "";
      case ActionKind::kBackwardWeight:
        if (!need(kInputGradient)) return "I of the same stage and microbatch has not run";
        return add_weight(action, done);
      case ActionKind::kSendForward:
        return need(kForwarded) ? "" : "the value that it sends has not been computed";
      case ActionKind::kSendBackward:
        return need(kInputGradient) ? "" : "the value that it sends has not been computed";
      case ActionKind::kRecvForward:
      case ActionKind::kRecvBackward: {
        const int edge = edges_.of(action);
        if (edge < 0) return "";
        const bool is_forward = action.kind == ActionKind::kRecvForward;
        if (need(is_forward ? kForwarded : kInputGradient)) return "the action that needs it has already run";
        auto& has =
            (is_forward ? has_value_ : has_gradient_)[at(edge) * at(schedule_.microbatches) + at(action.microbatch)];
        if (has != 0) return "it has already been received";
        has = 1;
        return "";
      }
      case ActionKind::kOffload:
        if (!need(kForwarded) || need(kInputGradient)) return "there are no activations to offload";
        if (need(kWasOffloaded)) return "its activations are already offloaded";
        done |= kWasOffloaded;
        return "";
      default:
        if (!need(kWasOffloaded)) return "its activations are not offloaded";
        done = static_cast<std::uint8_t>(done & ~kWasOffloaded);
        return "";
    }
  }

 private:
  // Floating-point sums depend on the order of addition.
  std::string add_weight(const Action& action, std::uint8_t& done) {
    int& last = last_weight_[at(action.stage)];
    if (action.microbatch < last) {
      return "microbatch " + std::to_string(last) + " has added its weight gradient to stage " +
             std::to_string(action.stage) + " before microbatch " + std::to_string(action.microbatch) +
             "; a stage adds them in ascending order, so that floating-point sums equal those of a single process";
    }
    last = action.microbatch;
    if ((done & kWeight) == 0) ++weights_[at(action.stage)];
    done |= kWeight;
    return "";
  }

  // Returns why the gradient of the stage's weights cannot be reduced yet; empty if it can.
  std::string why_not_whole(int stage) const {
    if (weights_[at(stage)] == schedule_.microbatches) return "";
    return "only " + std::to_string(weights_[at(stage)]) + " of " + std::to_string(schedule_.microbatches) +
           " microbatches have added their weight gradient to stage " + std::to_string(stage) +
           "; it is reduced after the last B or W";
  }

  // The weight is shared by all stages of the group that the rank holds.
  std::string why_not_tied_whole(int group, int rank) const {
    if (group < 0 || group >= static_cast<int>(schedule_.tied.size())) return "";
    for (const int stage : schedule_.tied[at(group)]) {
      if (schedule_.rank_of[at(stage)] != rank) continue;
      if (std::string missing = why_not_whole(stage); !missing.empty()) return missing;
    }
    return "";
  }

  // Checked once per rank: a second one is a duplicate, which the check of completeness finds.
  std::string why_no_norm(int rank) {
    if (has_norm_[at(rank)] != 0) return "";
    has_norm_[at(rank)] = 1;
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      if (schedule_.rank_of[at(stage)] != rank) continue;
      if (std::string missing = why_not_whole(stage); !missing.empty()) return missing;
    }
    return "";
  }

  std::string needs(const Action& action, const std::vector<int>& edges, bool is_forward, int rank) const {
    for (const int edge : edges) {
      const int other = is_forward ? edges_.source(edge) : edges_.target(edge);
      const std::string name = "stage " + std::to_string(other);
      if (schedule_.rank_of[at(other)] == rank) {
        const auto done = done_[at(other) * at(schedule_.microbatches) + at(action.microbatch)];
        if ((done & (is_forward ? kForwarded : kInputGradient)) == 0) {
          return (is_forward ? "the forward of " : "the backward of ") + name + " on the same rank has not run";
        }
      } else if (has_transfers_) {
        const auto& has = is_forward ? has_value_ : has_gradient_;
        if (has[at(edge) * at(schedule_.microbatches) + at(action.microbatch)] == 0) {
          return "the value from " + name + " has not been received";
        }
      }
    }
    return "";
  }

  const Schedule& schedule_;
  const DataEdges& edges_;
  const bool has_transfers_;
  std::vector<std::uint8_t> done_;
  std::vector<std::uint8_t> has_value_;  // by edge and microbatch
  std::vector<std::uint8_t> has_gradient_;
  std::vector<int> weights_;      // per stage: microbatches whose weight gradient has been added
  std::vector<int> last_weight_;  // per stage: the last of them; -1: none
  std::vector<char> has_norm_;    // per rank
};

}  // namespace

Found check_local_order(const Schedule& schedule, const DataEdges& edges) {
  Reader reader(schedule, edges);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const Action& action = row[at(index)];
      std::string wrong;
      // A pair begins with both inputs available. Its backward comes first here, because the forward must not provide
      // its input.
      if (action.kind == ActionKind::kOverlap) {
        wrong = reader.read(backward_of(action), rank);
        if (wrong.empty()) wrong = reader.read(forward_of(action), rank);
      } else {
        wrong = reader.read(action, rank);
      }
      if (!wrong.empty()) return violation_at(Check::kLocalOrder, schedule, rank, index, wrong);
    }
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
