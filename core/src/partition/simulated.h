// Where no sum tells the time of a step: the simulator decides between candidates.
#pragma once

#include "partition/search.h"
#include "smdp/partition.h"

namespace smdp::partition {

struct Simulated {
  Ends ends;  // empty: none of the candidates is within the cap
  double smallest_peak = 0;
};

// The best of all cuts, where there are few; else of the Pareto-optimal ones, and of what moving single cuts makes of
// it. Deterministic; how many are simulated depends on how long each takes.
Simulated best_simulated(const Problem& problem, const Spans& spans);

// The best of what moving single cuts makes of `ends`.
Ends improved(const Problem& problem, const Spans& spans, const Ends& ends);

}  // namespace smdp::partition
