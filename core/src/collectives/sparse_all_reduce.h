// all_reduce of tensors of which every rank has only some rows.
#pragma once

#include "collectives/context.h"
#include "collectives/planner.h"
#include "collectives/sparse_parts.h"

namespace smdp {

// Ranks tell each other how many rows they have. Then every rank gets all rows; or, if that is less data
// (cost/sparse_cost.h) or a rank has the whole tensor, they add up the whole tensor. Both add in rank order.
Task sparse_all_reduce(Context& context, SparseParts& parts, Reduction reduction, const Planner& planner);

}  // namespace smdp
