// Looped BFS, breadth-first (Lamy-Poirier, arXiv 2211.05953): every virtual stage runs all microbatches before the next
// one begins; the backward takes the virtual stages in reverse. torch 2.13 also reverses the microbatches, which takes
// equally long, but then gradients are not added in the order of a single process.
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule breadth_first(Schedule blank) {
  const auto add = [&](ActionKind kind, int stage) {
    auto& row = blank.rows[at(blank.rank_of[at(stage)])];
    for (int i = 0; i < blank.microbatches; ++i) row.push_back(compute(kind, stage, i));
  };
  for (int stage = 0; stage < blank.stages(); ++stage) add(ActionKind::kForward, stage);
  for (int stage = blank.stages() - 1; stage >= 0; --stage) add(ActionKind::kBackward, stage);
  return blank;
}

Schedule looped_bfs(const GenerateOptions& options) {
  return breadth_first(blank("looped_bfs", Placement::kLoop, options));
}

}  // namespace smdp::pipeline
