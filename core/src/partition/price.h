// The cost of a cut once its stages are on ranks, by simulation of its schedule.
#pragma once

#include <optional>

#include "partition/search.h"
#include "smdp/partition.h"

namespace smdp::partition {

// Returns whether formulas give the memory and, except for waiting, the step: 1F1B and GPipe with one stage per rank.
bool is_sum_exact(const Problem& problem);

// Returns the microbatches in flight per virtual stage by closed form: exact if is_sum_exact(), otherwise a bound or an
// estimate. Throws InvalidArgument for a schedule that needs another number of virtual stages.
std::vector<double> in_flight(const Problem& problem, int ranks);

// Returns everything but the reason. Throws InvalidArgument if the schedule does not support these numbers.
Partition priced(const Problem& problem, const Spans& spans, const Ends& ends);

// The same for any assignment of units to ranks, such as that of "smp". The units need not form a chain, so step and
// bubble stay 0.
Partition priced(const Problem& problem, const Spans& spans, const std::vector<int>& rank_of);

// Returns the maximum of peak_bytes.
double peak(const Partition& partition);

}  // namespace smdp::partition
