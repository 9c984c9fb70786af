// Evaluation: the forwards of interleaved 1F1B, on stages that are placed as those of the schedule that trains.
#include "pipeline/schedules/rounds.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule forward_only(const GenerateOptions& options) {
  const Placement placement = options.placement.value_or(Placement::kLoop);
  Schedule schedule = blank("forward_only", placement, options);
  schedule.forward_only = true;
  const Rounds rounds = make_rounds(options);
  for (int rank = 0; rank < options.stages; ++rank) {
    for (const Step& step : rounds.forwards) {
      const bool is_upwards = placement == Placement::kV && step.turn % 2 == 1;
      const int stage = step.turn * options.stages + (is_upwards ? options.stages - 1 - rank : rank);
      schedule.rows[at(rank)].push_back(compute(ActionKind::kForward, stage, step.microbatch));
    }
  }
  return schedule;
}

}  // namespace smdp::pipeline
