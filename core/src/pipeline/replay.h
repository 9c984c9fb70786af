// Runs the rows of all ranks against each other. Shared by the simulator, the check of acyclicity and the placing of
// transfers.
#pragma once

#include <string>
#include <vector>

#include "pipeline/data_edges.h"
#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"
#include "smdp/pipeline/simulate.h"

namespace smdp::pipeline {

// A rank that cannot continue.
struct Stuck {
  int rank;
  int index;         // in its row
  Action waits_for;  // a computation, a send, or a reduction of several ranks
};

struct Replay {
  std::vector<std::vector<Interval>> timeline;
  std::vector<LinkUse> links;
  std::vector<Stuck> stuck;  // empty: every row ran to its end
};

enum class ReplayMode {
  kTimed,      // the halves of a pair run one after the other, each as soon as it can
  kOrderOnly,  // computations only, without transfers; a pair begins when all its inputs are there
};

// Actions out of range are skipped; the verifier reports them.
Replay replay(const Schedule& schedule, const DataEdges& edges, const Costs& costs, ReplayMode mode);

// Describes a cycle among the stuck ranks, or what is missing.
std::string explain(const Schedule& schedule, const std::vector<Stuck>& stuck);

}  // namespace smdp::pipeline
