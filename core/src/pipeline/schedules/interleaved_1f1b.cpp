// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473): v virtual stages per rank in a loop, 1F1B over rounds of
// microbatches, in the order of torch 2.13. If the number of microbatches is not a multiple of the number of rounds,
// which torch rejects, the first rounds are longer.
#include <algorithm>

#include "pipeline/schedules/rounds.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule interleaved_1f1b(const GenerateOptions& options) {
  Schedule schedule = blank("interleaved_1f1b", Placement::kLoop, options);
  const Rounds rounds = make_rounds(options);
  const std::size_t steps = rounds.forwards.size();
  for (int rank = 0; rank < options.stages; ++rank) {
    auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    row.reserve(2 * steps);
    const auto add = [&](ActionKind kind, const Step& step) {
      row.push_back(compute(kind, step.turn * options.stages + rank, step.microbatch));
    };
    // Two for every hop to the last rank: there and back.
    const int distance = 2 * (options.stages - 1 - rank);
    const auto warm_up =
        std::min(steps, static_cast<std::size_t>((options.virtual_stages - 1) * rounds.longest + distance));
    for (std::size_t i = 0; i < warm_up; ++i) add(ActionKind::kForward, rounds.forwards[i]);
    for (std::size_t i = warm_up; i < steps; ++i) {
      add(ActionKind::kForward, rounds.forwards[i]);
      add(ActionKind::kBackward, rounds.backwards[i - warm_up]);
    }
    for (std::size_t i = steps - warm_up; i < steps; ++i) add(ActionKind::kBackward, rounds.backwards[i]);
  }
  return schedule;
}

}  // namespace smdp::pipeline
