// Runs the rows of all ranks against each other: what the simulator, the proof of acyclicity and the placing of
// transfers have in common.
#pragma once

#include <string>
#include <vector>

#include "pipeline/data_edges.h"
#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"
#include "smdp/pipeline/simulate.h"

namespace smdp::pipeline {

// A rank that cannot go on.
struct Stuck {
  int rank;
  int index;         // in its row
  Action waits_for;  // a computation, a send or a tied reduction
};

struct Replay {
  std::vector<std::vector<Interval>> timeline;
  std::vector<LinkUse> links;
  std::vector<Stuck> stuck;  // empty: every row ran to its end
};

// How a pair of overlapped computations waits for its inputs.
enum class Pairs {
  kInTurn,  // the forward, then the backward, each as soon as it can
  kAsOne,   // for all of them before it begins, which is the order that transfers must be placed in
};

// Actions out of range are passed over: the verifier names them.
Replay replay(const Schedule& schedule, const DataEdges& edges, const Costs& costs, Pairs pairs);

// A cycle among the stuck ranks in words, or what is missing.
std::string explain(const Schedule& schedule, const std::vector<Stuck>& stuck);

}  // namespace smdp::pipeline
