// What a cut costs once it is on ranks, by simulation of its schedule.
#pragma once

#include <optional>

#include "partition/search.h"
#include "smdp/partition.h"

namespace smdp::partition {

// Whether memory and, but for waiting, the step follow from formulas: 1F1B and GPipe with one stage per rank.
bool is_sum_exact(const Problem& problem);

// Microbatches in flight per virtual stage by closed form; exact where is_sum_exact(), else a bound or a guess. Throws
// InvalidArgument: a schedule that needs other virtual stages.
std::vector<double> in_flight(const Problem& problem, int ranks);

// Everything but the reason. Throws InvalidArgument: the schedule cannot have these numbers.
Partition priced(const Problem& problem, const Spans& spans, const Ends& ends);

// The same of any assignment of units to ranks, which "smp" makes; then step and bubble stay 0, as there is no chain.
Partition priced(const Problem& problem, const Spans& spans, const std::vector<int>& rank_of);

// The largest of peak_bytes.
double peak(const Partition& partition);

}  // namespace smdp::partition
