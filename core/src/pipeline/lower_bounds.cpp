// Bounds that no order of the same work can beat. For a rank, with X the seconds of all its stages for one microbatch:
//
//   makespan >= head + m X + tail
//
// head: a rank's first computation is the forward of its lowest stage, after the forwards and hops of all stages before
// it. tail: with whole backwards, its last computation is a backward of that same lowest stage, because a microbatch's
// other stages on the rank come back sooner; the backwards of all stages before it follow. A split backward has no
// tail: what follows the last input gradient can overlap the rank's last weight gradients. The way of a single
// microbatch through all stages and back is also a bound.
//
// For equal stages this gives (p-1)X + mX for GPipe and 1F1B, (p-1)X/v + mX for interleaved schedules, and (p-1)(F_v +
// c) + mX with a split backward, where F_v is a virtual stage's forward and c a hop.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "smdp/pipeline/simulate.h"

namespace smdp::pipeline {

LowerBounds lower_bounds(const Schedule& schedule, const Costs& costs) {
  check_shape(schedule);
  check_costs(costs, schedule.stages());
  bool is_split = false;
  for (const auto& row : schedule.rows) {
    for (const Action& action : row) {
      for_each_part(action,
                    [&](const Action& part) { is_split = is_split || part.kind == ActionKind::kBackwardInput; });
    }
  }
  const std::size_t stages = schedule.rank_of.size();
  std::vector<double> work(schedule.rows.size(), 0);
  std::vector<double> head(schedule.rows.size(), -1);
  std::vector<double> tail(schedule.rows.size(), 0);
  double down = 0;
  double up = 0;
  double way = 0;  // of one microbatch
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const auto rank = static_cast<std::size_t>(schedule.rank_of[stage]);
    const double hop = stage > 0 && schedule.rank_of[stage] != schedule.rank_of[stage - 1] ? costs.hop : 0;
    const double backward =
        schedule.forward_only ? 0 : costs.backward_input[stage] + (is_split ? 0 : costs.backward_weight[stage]);
    down += hop;
    up += schedule.forward_only ? 0 : hop;
    if (head[rank] < 0) {
      head[rank] = down;
      tail[rank] = is_split ? 0 : up;
    }
    down += costs.forward[stage];
    up += backward;
    way = down + up;
    work[rank] +=
        costs.forward[stage] + (schedule.forward_only ? 0 : costs.backward_input[stage] + costs.backward_weight[stage]);
  }
  LowerBounds bounds;
  bounds.makespan = way;
  for (std::size_t rank = 0; rank < work.size(); ++rank) {
    const double busy = schedule.microbatches * work[rank];
    bounds.span = std::max(bounds.span, busy);
    if (work[rank] > 0) bounds.makespan = std::max(bounds.makespan, head[rank] + busy + tail[rank]);
  }
  return bounds;
}

}  // namespace smdp::pipeline
