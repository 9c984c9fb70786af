#pragma once

#include "smdp/partition.h"

namespace smdp::partition {

// Throws InvalidArgument, which names the field, its value and the valid values.
void check(const Problem& problem);

}  // namespace smdp::partition
