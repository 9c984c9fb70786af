// What a cut costs once it is on ranks, by simulation of its schedule.
#pragma once

#include <optional>

#include "partition/search.h"
#include "smdp/partition.h"

namespace smdp::partition {

// Whether the sum that partition.h gives is the step's time: one stage per rank, backward whole.
bool is_sum_exact(const Problem& problem);

// Microbatches in flight per stage by closed form; empty where only a simulation tells. Throws InvalidArgument: an
// unknown schedule, or one that needs other virtual stages.
std::vector<double> in_flight(const Problem& problem, int ranks);

// Everything but the reason. Throws InvalidArgument: the schedule cannot have these numbers.
Partition priced(const Problem& problem, const Spans& spans, const Ends& ends);

// The same of any assignment of units to ranks, which "smp" makes; then step and bubble stay 0, as there is no chain.
Partition priced(const Problem& problem, const Spans& spans, const std::vector<int>& rank_of);

// The largest of peak_bytes.
double peak(const Partition& partition);

}  // namespace smdp::partition
