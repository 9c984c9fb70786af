// The partitioner that SageMaker's documentation describes (arXiv 2111.05972, Algorithms 1 to 3), for comparison.
#pragma once

#include <vector>

#include "smdp/partition.h"

namespace smdp::partition {

// Returns the rank of every unit. memory_weight is the documented option of that name.
std::vector<int> smp_assignment(const Problem& problem);

}  // namespace smdp::partition
