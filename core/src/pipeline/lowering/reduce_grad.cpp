#include <vector>

#include "pipeline/lowering/require.h"
#include "smdp/pipeline/lowering.h"

namespace smdp::pipeline {

Schedule add_reduce_grad(const Schedule& schedule) {
  check_shape(schedule);
  require_without(schedule, "add_reduce_grad", "REDUCE_GRAD",
                  [](ActionKind kind) { return kind == ActionKind::kReduceGrad; });
  Schedule result = schedule;
  for (auto& row : result.rows) {
    std::vector<int> last(schedule.rank_of.size(), -1);
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      for_each_part(row[static_cast<std::size_t>(index)], [&](const Action& part) {
        const bool has_gradient = part.kind == ActionKind::kBackward || part.kind == ActionKind::kBackwardWeight;
        if (has_gradient && part.stage >= 0 && part.stage < schedule.stages()) {
          last[static_cast<std::size_t>(part.stage)] = index;
        }
      });
    }
    std::vector<Action> lowered;
    lowered.reserve(row.size() + last.size());
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const Action& action = row[static_cast<std::size_t>(index)];
      lowered.push_back(action);
      for_each_part(action, [&](const Action& part) {
        if (is_compute(part.kind) && part.stage >= 0 && part.stage < schedule.stages() &&
            last[static_cast<std::size_t>(part.stage)] == index) {
          lowered.push_back({.kind = ActionKind::kReduceGrad, .stage = part.stage});
        }
      });
    }
    row = std::move(lowered);
  }
  return result;
}

}  // namespace smdp::pipeline
