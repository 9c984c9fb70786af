#include "pipeline/checks/checks.h"
#include "pipeline/replay.h"

namespace smdp::pipeline {

// Transfers are left to the checks of matching and deadlock.
Found check_acyclicity(const Schedule& schedule, const DataEdges& edges) {
  const Replay played = replay(schedule, edges, uniform_costs(schedule.stages()), ReplayMode::kOrderOnly);
  if (played.stuck.empty()) return std::nullopt;
  const Stuck& first = played.stuck.front();
  return violation_at(Check::kAcyclicity, schedule, first.rank, first.index,
                      "the computations wait for each other in a cycle: " + explain(schedule, played.stuck));
}

}  // namespace smdp::pipeline
