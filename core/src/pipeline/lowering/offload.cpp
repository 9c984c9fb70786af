#include <map>
#include <utility>
#include <vector>

#include "common/argument.h"
#include "pipeline/lowering/require.h"
#include "smdp/pipeline/lowering.h"

namespace smdp::pipeline {

Schedule add_offload(const Schedule& schedule, const std::vector<int>& stages, int offload_horizon) {
  check_shape(schedule);
  check_count("offload_horizon", offload_horizon, 1);
  require_without(schedule, "add_offload", "OFFLOAD",
                  [](ActionKind kind) { return kind == ActionKind::kOffload || kind == ActionKind::kReload; });
  std::vector<char> is_offloaded(schedule.rank_of.size(), 0);
  for (const int stage : stages) {
    check_count("a stage of offload", stage, 0, schedule.stages() - 1);
    is_offloaded[at(stage)] = 1;
  }
  Schedule result = schedule;
  if (schedule.forward_only) return result;  // nothing is kept
  for (auto& row : result.rows) {
    // The positions of computations, because a horizon counts only those and not the actions of other passes.
    std::vector<std::size_t> computations;
    std::map<std::pair<int, int>, std::size_t> forward_at;
    std::vector<std::vector<Action>> before(row.size());
    std::vector<std::vector<Action>> after(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!is_compute(row[i].kind)) continue;
      computations.push_back(i);
      for_each_part(row[i], [&](const Action& part) {
        if (!is_in_range(schedule, part) || is_offloaded[at(part.stage)] == 0) return;
        const std::pair key{part.stage, part.microbatch};
        if (part.kind == ActionKind::kForward) {
          forward_at[key] = computations.size() - 1;
        } else if (is_input_gradient(part.kind) && forward_at.contains(key)) {
          const std::size_t made = forward_at[key];
          const std::size_t used = computations.size() - 1;
          if (used - made <= static_cast<std::size_t>(offload_horizon)) return;
          after[computations[made]].push_back(
              {.kind = ActionKind::kOffload, .stage = part.stage, .microbatch = part.microbatch});
          before[computations[used - static_cast<std::size_t>(offload_horizon)]].push_back(
              {.kind = ActionKind::kReload, .stage = part.stage, .microbatch = part.microbatch});
        }
      });
    }
    std::vector<Action> lowered;
    for (std::size_t i = 0; i < row.size(); ++i) {
      lowered.insert(lowered.end(), before[i].begin(), before[i].end());
      lowered.push_back(row[i]);
      lowered.insert(lowered.end(), after[i].begin(), after[i].end());
    }
    row = std::move(lowered);
  }
  return result;
}

}  // namespace smdp::pipeline
