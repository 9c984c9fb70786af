// Evaluation: the forwards of interleaved 1F1B.
#include "pipeline/schedules/rounds.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule forward_only(const GenerateOptions& options) {
  Schedule schedule = blank("forward_only", Placement::kLoop, options);
  schedule.forward_only = true;
  const Rounds rounds = make_rounds(options);
  for (int rank = 0; rank < options.stages; ++rank) {
    auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    for (const Step& step : rounds.forwards) {
      row.push_back(compute(ActionKind::kForward, step.turn * options.stages + rank, step.microbatch));
    }
  }
  return schedule;
}

}  // namespace smdp::pipeline
