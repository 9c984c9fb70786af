// Exact event simulation of a schedule.
#pragma once

#include <vector>

#include "smdp/export.h"
#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

struct Interval {
  double start = 0;
  double end = 0;
};

struct LinkUse {
  int from = 0;  // ranks
  int to = 0;
  long transfers = 0;
  double busy = 0;  // time during which at least one hop is in progress
};

struct Simulation {
  double makespan = 0;                          // last end minus first start over all ranks
  double span = 0;                              // the same for one rank; the largest
  double bubble = 0;                            // 1 - work / (ranks x makespan)
  double work = 0;                              // sum of computations on all ranks
  std::vector<double> peak_activations;         // bytes, per rank
  std::vector<int> peak_action;                 // per rank: index in the row; -1 if nothing is kept
  std::vector<std::vector<Interval>> timeline;  // same shape as the rows
  std::vector<LinkUse> links;                   // sorted by from, then to
};

// Simulates a schedule. A rank runs its row in order. A computation starts when the rank is free and its inputs have
// arrived, one hop after they were made. Sends do not block a rank. A pair of overlapped computations takes the sum of
// both. Throws InvalidArgument if costs have the wrong number or value, or if the schedule deadlocks, with what each
// rank waits for.
SMDP_API Simulation simulate(const Schedule& schedule, const Costs& costs);

struct LowerBounds {
  double makespan = 0;
  double span = 0;
};

// Returns bounds that no schedule on this placement can beat, with split or whole backwards. For the proof see
// core/src/pipeline/lower_bounds.cpp.
SMDP_API LowerBounds lower_bounds(const Schedule& schedule, const Costs& costs);

}  // namespace smdp::pipeline
