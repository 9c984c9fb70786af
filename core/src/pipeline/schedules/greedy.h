// List scheduling on the clock: whenever a rank is free it takes the best of what is ready. The zero-bubble schedules
// are its best result over a few rules; SMP's interleaved schedule is one of its rules.
#pragma once

#include <vector>

#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

struct GreedyRules {
  bool is_split = true;                    // I and W apart; W fills the time in which nothing else is ready
  double memory_cap = 0;                   // bytes of activations per rank; 0: any
  int active_microbatches = 0;             // most between the starts of F and of the backward on stage 0; 0: any
  bool is_backward_first = true;           // where both are ready
  double patience = 0;                     // leave a gap alone that is shorter than this part of a W
  double forward_patience = 0;             // and one before an input gradient that is shorter than this part of an F
  std::vector<std::vector<Action>> order;  // per rank: forwards and input gradients in this order; empty: any
  int lookahead = 0;  // with an order: how far behind the next action one may be that runs while that is not ready
};

// Fills an empty schedule. Rows are complete unless memory_cap is below smallest_cap(), in best_greedy.h.
Schedule run_greedy(Schedule blank, const Costs& costs, const GreedyRules& rules);

}  // namespace smdp::pipeline
