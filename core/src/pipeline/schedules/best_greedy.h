// The best of list scheduling's rules, and what "best" means.
#pragma once

#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// What a schedule is worth on these costs.
struct Score {
  double makespan;
  double span;
  double peak;  // bytes, of the rank that keeps most
};

Score score_of(const Schedule& schedule, const Costs& costs);

// Least makespan, or least span, then the other, then the peak. Differences by rounding count as none.
bool is_better(const Score& a, const Score& b, bool by_span = false);

// Whether it has so many virtual stages x microbatches that trying all rules would take seconds.
bool is_long(const Schedule& schedule);

// Bytes that a rank needs to take one microbatch through: the least cap with which every schedule comes to an end.
double smallest_cap(const Schedule& schedule, const Costs& costs);

// memory_cap: bytes per rank, at least smallest_cap(); 0: any.
Schedule best_greedy(const Schedule& blank, const Costs& costs, double memory_cap, bool by_span = false);

}  // namespace smdp::pipeline
