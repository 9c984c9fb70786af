#pragma once

#include <string>

#include "partition/search.h"
#include "smdp/partition.h"

namespace smdp::partition {

// Returns one sentence: the slowest stage, and the effect of moving its first or last unit to a neighbor.
std::string reason_of(const Problem& problem, const Spans& spans, const Ends& ends, const Partition& chosen);

// Returns one sentence about an assignment by SMP's algorithm.
std::string reason_of(const Partition& chosen);

// Throws InvalidArgument because no cut fits, with the smallest sufficient cap and number of ranks. tried: the smallest
// peak of the simulated cuts; 0: none was simulated.
[[noreturn]] void refuse_infeasible(const Problem& problem, const Spans& spans, double tried);

}  // namespace smdp::partition
