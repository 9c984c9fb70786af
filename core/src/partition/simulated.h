// Chooses among candidates with the simulator, for schedules whose step no sum predicts.
#pragma once

#include "partition/search.h"
#include "smdp/partition.h"

namespace smdp::partition {

struct Simulated {
  Ends ends;                   // empty: pins or tied parameters rule out all cuts
  double peak = 0;             // bytes of the fullest rank
  bool is_within_cap = false;  // if false, `ends` has the smallest peak that was found
};

// Returns the best of all cuts if there are few. Otherwise takes the best Pareto-optimal cut and moves single cuts of
// it. Deterministic; how many cuts are simulated depends on how long each takes.
Simulated best_simulated(const Problem& problem, const Spans& spans);

// Returns the best of all cuts if there are few and only seconds count; otherwise moves single cuts of `ends`.
Ends improved(const Problem& problem, const Spans& spans, const Ends& ends);

}  // namespace smdp::partition
