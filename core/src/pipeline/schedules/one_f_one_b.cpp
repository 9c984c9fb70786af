// 1F1B (PipeDream-flush; Narayanan et al., arXiv 2104.04473): rank r runs p - 1 - r forwards, then alternates a forward
// and a backward, so that it never keeps more than p - r microbatches.
#include <algorithm>

#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule one_f_one_b(const GenerateOptions& options) {
  Schedule schedule = blank("1f1b", Placement::kLoop, options);
  for (int rank = 0; rank < options.stages; ++rank) {
    auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    const int warm_up = std::min(options.stages - 1 - rank, options.microbatches);
    for (int i = 0; i < warm_up; ++i) row.push_back(compute(ActionKind::kForward, rank, i));
    for (int i = warm_up; i < options.microbatches; ++i) {
      row.push_back(compute(ActionKind::kForward, rank, i));
      row.push_back(compute(ActionKind::kBackward, rank, i - warm_up));
    }
    for (int i = options.microbatches - warm_up; i < options.microbatches; ++i) {
      row.push_back(compute(ActionKind::kBackward, rank, i));
    }
  }
  return schedule;
}

}  // namespace smdp::pipeline
