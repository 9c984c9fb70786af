// SMP's "interleaved" pipeline (arXiv 2111.05972; not Megatron's interleaving): every rank takes a backward whenever
// one is ready, and otherwise a forward, with at most `active_microbatches` in flight. SMP decides at run time; here
// the simulator's clock decides, so the table is the same in every run.
#include "pipeline/schedules/greedy.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule smp_interleaved(const GenerateOptions& options) {
  GreedyRules rules;
  rules.is_split = false;
  rules.active_microbatches = options.active_microbatches > 0 ? options.active_microbatches : options.stages + 2;
  return run_greedy(blank("smp_interleaved", Placement::kLoop, options), costs_or_unit(options), rules);
}

}  // namespace smdp::pipeline
