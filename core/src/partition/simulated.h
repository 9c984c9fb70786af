// Where no sum tells the time of a step: the simulator decides between candidates.
#pragma once

#include "partition/search.h"
#include "smdp/partition.h"

namespace smdp::partition {

struct Simulated {
  Ends ends;                   // empty: pins or tied parameters forbid all
  double peak = 0;             // bytes of the fullest rank
  bool is_within_cap = false;  // if not: the smallest peak that was found
};

// The best of all cuts, where there are few; else of the Pareto-optimal ones, and of what moving single cuts makes of
// it. Deterministic; how many are simulated depends on how long each takes.
Simulated best_simulated(const Problem& problem, const Spans& spans);

// The best of all cuts, where there are few and only seconds count; else of what moving single cuts makes of `ends`.
Ends improved(const Problem& problem, const Spans& spans, const Ends& ends);

}  // namespace smdp::partition
