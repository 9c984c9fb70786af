// GPipe (Huang et al., arXiv 1811.06965), SMP's "simple": all forwards, then all backwards.
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule gpipe(const GenerateOptions& options) {
  Schedule schedule = blank("gpipe", Placement::kLoop, options);
  for (int rank = 0; rank < options.stages; ++rank) {
    auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    for (int i = 0; i < options.microbatches; ++i) row.push_back(compute(ActionKind::kForward, rank, i));
    for (int i = 0; i < options.microbatches; ++i) row.push_back(compute(ActionKind::kBackward, rank, i));
  }
  return schedule;
}

}  // namespace smdp::pipeline
