// Schedules in a V that repeat one block (Qi et al., arXiv 2405.15362): every microbatch takes the same way through the
// ranks, six slots after the previous one. Its speed determines how long its activations are kept.
#pragma once

#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// Slots from rank to rank on each of a microbatch's four ways through a V.
struct Pace {
  int forward_down;
  int forward_up;
  int backward_down;  // input gradients of the virtual stages on the way up
  int backward_up;
};

// Returns the best schedule within memory_cap (bytes per rank). Forwards and input gradients are in the order of
// repeated blocks. Weight gradients fill the free time, and make room where the cap requires it. List scheduling
// without a block is also a candidate.
Schedule best_of_blocks(const Schedule& blank, const Pace& pace, const Costs& costs, double memory_cap);

}  // namespace smdp::pipeline
