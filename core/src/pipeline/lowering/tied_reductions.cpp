#include <algorithm>
#include <string>
#include <vector>

#include "common/argument.h"
#include "pipeline/lowering/require.h"
#include "smdp/pipeline/lowering.h"

namespace smdp::pipeline {
namespace {

void require_several(const std::vector<int>& stages, std::size_t group) {
  std::vector<int> sorted = stages;
  std::sort(sorted.begin(), sorted.end());
  const auto repeated = std::adjacent_find(sorted.begin(), sorted.end());
  if (sorted.size() >= 2 && repeated == sorted.end()) return;
  const std::string what = repeated != sorted.end() ? "stage " + std::to_string(*repeated) + " twice"
                                                    : std::to_string(stages.size()) + " stages";
  refuse("tied[" + std::to_string(group) + "]", what, "two or more different stages that share a weight");
}

}  // namespace

Schedule add_tied_reductions(const Schedule& schedule, const std::vector<std::vector<int>>& groups) {
  require_without(schedule, "add_tied_reductions", "REDUCE_TIED",
                  [](ActionKind kind) { return kind == ActionKind::kReduceTied; });
  Schedule result = schedule;
  result.tied = groups;
  check_shape(result);
  for (std::size_t group = 0; group < groups.size(); ++group) require_several(groups[group], group);
  if (schedule.forward_only) return result;
  for (int rank = 0; rank < result.ranks(); ++rank) {
    for (std::size_t group = 0; group < groups.size(); ++group) {
      // One entry per rank, because stages of a group on the same rank share the weight itself.
      for (const int stage : groups[group]) {
        if (result.rank_of[static_cast<std::size_t>(stage)] != rank) continue;
        result.rows[static_cast<std::size_t>(rank)].push_back(
            {.kind = ActionKind::kReduceTied, .stage = stage, .other_stage = static_cast<int>(group)});
        break;
      }
    }
  }
  return result;
}

}  // namespace smdp::pipeline
