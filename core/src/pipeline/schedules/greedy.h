// List scheduling over time: whenever a rank is free, it takes the best of the ready actions. The zero-bubble schedules
// are its best result over a few rules; SMP's interleaved schedule is one of its rules.
#pragma once

#include <vector>

#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

struct GreedyRules {
  bool is_split = true;           // separate I and W; W fills the time in which nothing else is ready
  double memory_cap = 0;          // bytes of activations per rank; 0: no cap
  int active_microbatches = 0;    // maximum between the starts of F and of the backward on stage 0; 0: no limit
  bool is_backward_first = true;  // if both are ready
  double patience = 0;            // leave a gap empty that is shorter than this fraction of a W
  double forward_patience = 0;    // and one before an input gradient that is shorter than this fraction of an F
  std::vector<std::vector<Action>> order;  // per rank: forwards and input gradients in this order; empty: any order
  int lookahead = 0;  // with an order: how far ahead an action may be that runs while the next one is not ready
};

// Fills an empty schedule. Rows are complete unless memory_cap is below smallest_cap(), see best_greedy.h.
Schedule run_greedy(Schedule blank, const Costs& costs, const GreedyRules& rules);

}  // namespace smdp::pipeline
