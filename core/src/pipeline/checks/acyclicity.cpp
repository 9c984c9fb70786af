#include "pipeline/checks/checks.h"
#include "pipeline/replay.h"

namespace smdp::pipeline {

Found check_acyclicity(const Schedule& schedule, const DataEdges& edges) {
  // The order of the computations alone: what transfers add is a matter of matching and deadlock.
  Schedule bare;
  const Schedule* plain = &schedule;
  std::vector<std::vector<int>> places;
  if (has_transfers(schedule)) {
    bare = schedule;
    places.resize(bare.rows.size());
    for (std::size_t rank = 0; rank < bare.rows.size(); ++rank) {
      bare.rows[rank].clear();
      for (std::size_t i = 0; i < schedule.rows[rank].size(); ++i) {
        if (is_transfer(schedule.rows[rank][i].kind)) continue;
        bare.rows[rank].push_back(schedule.rows[rank][i]);
        places[rank].push_back(static_cast<int>(i));
      }
    }
    plain = &bare;
  }
  const Replay played = replay(*plain, edges, uniform_costs(schedule.stages()), Pairs::kAsOne);
  if (played.stuck.empty()) return std::nullopt;
  const Stuck& first = played.stuck.front();
  const int index = places.empty()
                        ? first.index
                        : places[static_cast<std::size_t>(first.rank)][static_cast<std::size_t>(first.index)];
  return violation_at(Check::kAcyclicity, schedule, first.rank, index,
                      "the computations wait for each other in a cycle: " + explain(*plain, played.stuck));
}

}  // namespace smdp::pipeline
