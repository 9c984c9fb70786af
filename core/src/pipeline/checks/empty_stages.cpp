// A stage may have no layers, and a rank may have less work than others. But every virtual stage must take part,
// because its neighbors send to it and wait for it.
#include <string>
#include <vector>

#include "pipeline/checks/checks.h"

namespace smdp::pipeline {

Found check_empty_stages(const Schedule& schedule) {
  std::vector<char> is_present(schedule.rank_of.size(), 0);
  for (const auto& row : schedule.rows) {
    for (const Action& action : row) {
      for_each_part(action, [&](const Action& part) {
        if (is_compute(part.kind) && part.stage >= 0 && part.stage < schedule.stages()) {
          is_present[static_cast<std::size_t>(part.stage)] = 1;
        }
      });
    }
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    if (is_present[static_cast<std::size_t>(stage)] != 0) continue;
    return violation_of(Check::kEmptyStages, schedule, schedule.rank_of[static_cast<std::size_t>(stage)],
                        {.kind = ActionKind::kForward, .stage = stage},
                        "no row computes stage " + std::to_string(stage) +
                            "; a stage without layers passes on its input, with the same actions as any other stage");
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
