// Evaluation: the forwards of interleaved 1F1B, with stages placed like those of the training schedule.
#include "pipeline/schedules/rounds.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule forward_only(const GenerateOptions& options) {
  Schedule schedule = blank("forward_only", options.placement.value_or(Placement::kLoop), options);
  schedule.forward_only = true;
  std::vector<std::vector<int>> stages(schedule.rows.size());
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    stages[at(schedule.rank_of[at(stage)])].push_back(stage);
  }
  for (std::size_t rank = 0; rank < stages.size(); ++rank) {
    GenerateOptions own = options;
    own.virtual_stages = static_cast<int>(stages[rank].size());
    for (const Step& step : make_rounds(own).forwards) {
      schedule.rows[rank].push_back(compute(ActionKind::kForward, stages[rank][at(step.turn)], step.microbatch));
    }
  }
  return schedule;
}

}  // namespace smdp::pipeline
