// Interleaved zero bubble: ZB-H1 (Qi et al., arXiv 2401.10241) over rounds of microbatches, in the order of torch 2.13.
// A rank warms up with one forward per hop to the last rank, not two, and delays its weight gradients by as many steps
// as its rank, so that they fill the bubble at the end.
#include <algorithm>

#include "pipeline/schedules/rounds.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule interleaved_zero_bubble(const GenerateOptions& options) {
  Schedule schedule = blank("interleaved_zero_bubble", Placement::kLoop, options);
  const Rounds rounds = make_rounds(options);
  const std::size_t steps = rounds.forwards.size();
  for (int rank = 0; rank < options.stages; ++rank) {
    auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    row.reserve(3 * steps);
    const auto add = [&](ActionKind kind, const Step& step) {
      row.push_back(compute(kind, step.turn * options.stages + rank, step.microbatch));
    };
    const int distance = options.stages - 1 - rank;
    const auto warm_up =
        std::min(steps, static_cast<std::size_t>((options.virtual_stages - 1) * rounds.longest + distance));
    const auto held_back = static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < warm_up; ++i) add(ActionKind::kForward, rounds.forwards[i]);
    std::size_t weights = 0;
    for (std::size_t i = 0; i < steps; ++i) {
      if (warm_up + i < steps) add(ActionKind::kForward, rounds.forwards[warm_up + i]);
      add(ActionKind::kBackwardInput, rounds.backwards[i]);
      if (i >= held_back) add(ActionKind::kBackwardWeight, rounds.backwards[weights++]);
    }
    while (weights < steps) add(ActionKind::kBackwardWeight, rounds.backwards[weights++]);
  }
  return schedule;
}

}  // namespace smdp::pipeline
