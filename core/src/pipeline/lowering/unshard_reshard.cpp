#include <algorithm>
#include <string>
#include <vector>

#include "smdp/error.h"
#include "smdp/pipeline/lowering.h"

namespace smdp::pipeline {
namespace {

// For each action the next `count` different stages that the row computes from there on, nearest first.
std::vector<std::vector<int>> next_stages(const std::vector<Action>& row, int count) {
  std::vector<std::vector<int>> next(row.size());
  std::vector<int> stages;
  for (std::size_t i = row.size(); i-- > 0;) {
    if (is_compute(row[i].kind)) {
      // Both halves of a pair are needed at once; the forward, visited last, ends up in front.
      std::vector<int> own;
      for_each_part(row[i], [&](const Action& part) { own.push_back(part.stage); });
      for (auto stage = own.rbegin(); stage != own.rend(); ++stage) {
        stages.erase(std::remove(stages.begin(), stages.end(), *stage), stages.end());
        stages.insert(stages.begin(), *stage);
      }
    }
    const auto kept = std::min(stages.size(), static_cast<std::size_t>(count));
    next[i].assign(stages.begin(), stages.begin() + static_cast<std::ptrdiff_t>(kept));
  }
  return next;
}

}  // namespace

Schedule add_unshard_reshard(const Schedule& schedule, int max_unsharded) {
  check_shape(schedule);
  if (max_unsharded < 2) {
    throw InvalidArgument(
        "[smdp] max_unsharded=" + std::to_string(max_unsharded) +
        " is not valid; allowed: 2 or more, since a pair of overlapped computations uses two stages.");
  }
  Schedule result = schedule;
  for (auto& row : result.rows) {
    std::vector<Action> lowered;
    std::vector<int> whole;  // stages, the one first unsharded first
    const std::vector<std::vector<int>> nearest = next_stages(row, max_unsharded);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (is_compute(row[i].kind)) {
        const std::vector<int>& next = nearest[i];
        const auto is_next = [&](int stage) { return std::find(next.begin(), next.end(), stage) != next.end(); };
        for (const int stage : whole) {
          if (!is_next(stage)) lowered.push_back({.kind = ActionKind::kReshard, .stage = stage});
        }
        whole.erase(std::remove_if(whole.begin(), whole.end(), [&](int stage) { return !is_next(stage); }),
                    whole.end());
        for (const int stage : next) {
          if (std::find(whole.begin(), whole.end(), stage) != whole.end()) continue;
          lowered.push_back({.kind = ActionKind::kUnshard, .stage = stage});
          whole.push_back(stage);
        }
      }
      lowered.push_back(row[i]);
    }
    for (const int stage : whole) lowered.push_back({.kind = ActionKind::kReshard, .stage = stage});
    row = std::move(lowered);
  }
  return result;
}

}  // namespace smdp::pipeline
