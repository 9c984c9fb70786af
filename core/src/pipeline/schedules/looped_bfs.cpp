// Looped BFS, breadth-first (Lamy-Poirier, arXiv 2211.05953): every virtual stage runs all microbatches before the next
// one begins; the backward takes the virtual stages the other way round. torch 2.13's takes the microbatches so, too:
// as long, but then gradients are not added in the order of one process.
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule looped_bfs(const GenerateOptions& options) {
  Schedule schedule = blank("looped_bfs", Placement::kLoop, options);
  for (int rank = 0; rank < options.stages; ++rank) {
    auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    for (int turn = 0; turn < options.virtual_stages; ++turn) {
      for (int i = 0; i < options.microbatches; ++i) {
        row.push_back(compute(ActionKind::kForward, turn * options.stages + rank, i));
      }
    }
    for (int turn = options.virtual_stages - 1; turn >= 0; --turn) {
      for (int i = 0; i < options.microbatches; ++i) {
        row.push_back(compute(ActionKind::kBackward, turn * options.stages + rank, i));
      }
    }
  }
  return schedule;
}

}  // namespace smdp::pipeline
