// all_reduce of tensors of which every rank has only some rows.
#pragma once

#include "collectives/context.h"
#include "collectives/planner.h"
#include "collectives/sparse_parts.h"

namespace smdp {

// Ranks tell each other how many rows they have. Then every rank gets all rows, or, where that is less data
// (cost/sparse_cost.h) or a rank has all of it, they add up the whole tensor. Both add in the order of the ranks.
Task sparse_all_reduce(Context& context, SparseParts& parts, Reduction reduction, const Planner& planner);

}  // namespace smdp
