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
  double busy = 0;  // time in which at least one hop is under way
};

struct Simulation {
  double makespan = 0;                          // last end minus first start over all ranks
  double span = 0;                              // the same of one rank, the largest
  double bubble = 0;                            // 1 - work / (ranks x makespan)
  double work = 0;                              // of computations, all ranks together
  std::vector<double> peak_activations;         // bytes, per rank
  std::vector<int> peak_action;                 // per rank: place in the row; -1 if nothing is kept
  std::vector<std::vector<Interval>> timeline;  // as rows
  std::vector<LinkUse> links;                   // by from, then to
};

// A rank runs its row in order; a computation starts when the rank is free and its inputs have come, a hop after they
// were made. Sends do not hold a rank up. A pair of overlapped computations takes the sum of both.
// Throws InvalidArgument: costs of wrong number or value, or a schedule that stops half-way, saying who waits for what.
SMDP_API Simulation simulate(const Schedule& schedule, const Costs& costs);

struct LowerBounds {
  double makespan = 0;
  double span = 0;
};

// What no schedule on this placement can beat, with backwards split or not; core/src/pipeline/lower_bounds.cpp has the
// argument.
SMDP_API LowerBounds lower_bounds(const Schedule& schedule, const Costs& costs);

}  // namespace smdp::pipeline
