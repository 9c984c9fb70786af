#include "smdp/pipeline/simulate.h"

#include <algorithm>
#include <limits>
#include <string>

#include "common/argument.h"
#include "pipeline/footprint.h"
#include "pipeline/replay.h"

namespace smdp::pipeline {
namespace {

double work_of(const Action& action, const Costs& costs) {
  if (!is_compute(action.kind) || action.stage < 0 || action.stage >= static_cast<int>(costs.forward.size())) return 0;
  const auto stage = static_cast<std::size_t>(action.stage);
  switch (action.kind) {
    case ActionKind::kForward:
      return costs.forward[stage];
    case ActionKind::kBackwardInput:
      return costs.backward_input[stage];
    case ActionKind::kBackwardWeight:
      return costs.backward_weight[stage];
    default:
      return costs.backward_input[stage] + costs.backward_weight[stage];
  }
}

}  // namespace

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  check_shape(schedule);
  check_costs(costs, schedule.stages());
  Replay played = replay(schedule, DataEdges(schedule), costs, ReplayMode::kTimed);
  if (!played.stuck.empty()) {
    throw InvalidArgument("[smdp] simulation: schedule '" + shown(schedule.name) + "' stops before its end: " +
                          explain(schedule, played.stuck) + "; verify() tells which rule it breaks.");
  }
  Simulation result;
  double first = std::numeric_limits<double>::infinity();
  double last = 0;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    const auto& times = played.timeline[static_cast<std::size_t>(rank)];
    double begin = std::numeric_limits<double>::infinity();
    double end = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      // Actions that take no time, such as an UNSHARD that a stream hides, neither begin nor end a rank's work.
      if (!is_compute(row[i].kind) && times[i].end <= times[i].start) continue;
      begin = std::min(begin, times[i].start);
      end = std::max(end, times[i].end);
      for_each_part(row[i], [&](const Action& part) { result.work += work_of(part, costs); });
    }
    const Footprint kept = footprint(schedule, rank, costs);
    result.peak_activations.push_back(kept.peak);
    result.peak_action.push_back(kept.peak_index);
    if (end < begin) continue;
    result.span = std::max(result.span, end - begin);
    first = std::min(first, begin);
    last = std::max(last, end);
  }
  result.makespan = std::max(0.0, last - first);
  if (result.makespan > 0) result.bubble = 1 - result.work / (schedule.ranks() * result.makespan);
  result.timeline = std::move(played.timeline);
  result.links = std::move(played.links);
  return result;
}

}  // namespace smdp::pipeline
