// Chooses the best result of list scheduling's rules, and defines "best".
#pragma once

#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// The quality of a schedule with these costs.
struct Score {
  double makespan;
  double span;
  double peak;  // bytes, of the rank that keeps the most
};

Score score_of(const Schedule& schedule, const Costs& costs);

// Compares by makespan, or by span, then by the other of the two, then by peak. Rounding differences do not count.
bool is_better(const Score& a, const Score& b, bool by_span = false);

// Returns whether virtual stages x microbatches are so many that trying all rules would take seconds.
bool is_long(const Schedule& schedule);

// Returns the bytes that a rank needs for one microbatch: the smallest cap with which every schedule can finish.
double smallest_cap(const Schedule& schedule, const Costs& costs);

// memory_cap: bytes per rank, at least smallest_cap(); 0: no cap.
Schedule best_greedy(const Schedule& blank, const Costs& costs, double memory_cap, bool by_span = false);

}  // namespace smdp::pipeline
