#include "pipeline/footprint.h"

#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

namespace smdp::pipeline {
namespace {

class Ledger {
 public:
  Ledger(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule), costs_(costs), activations_(at(schedule.microbatches), 0) {}

  Footprint run(const std::vector<Action>& row) {
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      for_each_part(row[at(index)], [&](const Action& part) { begin(part, index); });
      for_each_part(row[at(index)], [&](const Action& part) { end(part); });
    }
    return footprint_;
  }

 private:
  double stash(int stage) const {
    return costs_.stash_bytes.empty() ? costs_.activation_bytes[at(stage)] : costs_.stash_bytes[at(stage)];
  }

  void take(double bytes, int index) {
    held_ += bytes;
    // Sums of equal terms in a different order may differ in the last bit, which is not a new peak.
    if (held_ > footprint_.peak * (1 + 1e-12)) {
      footprint_.peak = held_;
      footprint_.peak_index = index;
    }
  }

  void begin(const Action& action, int index) {
    if (!is_in_range(schedule_, action)) return;
    if (is_receive(action.kind)) {
      if (costs_.receive_bytes.empty()) return;
      take(costs_.receive_bytes[at(action.stage)], index);
      ++buffers_[{action.kind, action.stage, action.microbatch}];
    } else if (action.kind == ActionKind::kReload) {
      take(costs_.activation_bytes[at(action.stage)], index);
    } else if (action.kind == ActionKind::kForward) {
      take(costs_.activation_bytes[at(action.stage)], index);
      if (activations_[at(action.microbatch)]++ == 0 && ++active_ > footprint_.most_active) {
        footprint_.most_active = active_;
        footprint_.most_active_index = index;
      }
    }
  }

  void end(const Action& action) {
    if (!is_in_range(schedule_, action)) return;
    const double bytes = costs_.activation_bytes[at(action.stage)];
    switch (action.kind) {
      case ActionKind::kForward:
        consume(action, ActionKind::kRecvForward);
        if (schedule_.forward_only) drop(action, bytes);
        break;
      case ActionKind::kBackward:
        consume(action, ActionKind::kRecvBackward);
        drop(action, bytes);
        break;
      case ActionKind::kBackwardInput:
        consume(action, ActionKind::kRecvBackward);
        held_ -= bytes - stash(action.stage);
        break;
      case ActionKind::kBackwardWeight:
        drop(action, stash(action.stage));
        break;
      case ActionKind::kOffload:
        held_ -= bytes;
        break;
      default:
        break;
    }
  }

  void consume(const Action& action, ActionKind receive) {
    const auto found = buffers_.find({receive, action.stage, action.microbatch});
    if (found == buffers_.end()) return;
    held_ -= found->second * costs_.receive_bytes[at(action.stage)];
    buffers_.erase(found);
  }

  void drop(const Action& action, double bytes) {
    held_ -= bytes;
    if (--activations_[at(action.microbatch)] == 0) --active_;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  Footprint footprint_;
  std::vector<int> activations_;  // per microbatch; counts several stages
  double held_ = 0;
  int active_ = 0;
  std::map<std::tuple<ActionKind, int, int>, int> buffers_;  // by receive, stage and microbatch
};

}  // namespace

Footprint footprint(const Schedule& schedule, int rank, const Costs& costs) {
  return Ledger(schedule, costs).run(schedule.rows[at(rank)]);
}

}  // namespace smdp::pipeline
