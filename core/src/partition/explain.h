#pragma once

#include <string>

#include "partition/search.h"
#include "smdp/partition.h"

namespace smdp::partition {

// One sentence: which stage is the slowest, and what would be if its first or last unit went to a neighbour.
std::string reason_of(const Problem& problem, const Spans& spans, const Ends& ends, const Partition& chosen);

// One sentence on an assignment by SMP's algorithm.
std::string reason_of(const Partition& chosen);

// Throws InvalidArgument: no cut fits; with the smallest cap and the smallest number of ranks that would do.
// tried: the smallest peak of the cuts that were simulated; 0: none was.
[[noreturn]] void refuse_infeasible(const Problem& problem, const Spans& spans, double tried);

}  // namespace smdp::partition
