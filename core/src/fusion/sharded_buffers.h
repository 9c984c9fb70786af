// What this rank owns of fusion buffers.
#pragma once

#include <vector>

#include "fusion/fusion_buffer.h"
#include "fusion/fusion_plan.h"
#include "smdp/gradient_reducer.h"
#include "smdp/shards.h"

namespace smdp {

// Returns the buffers with the ranges that this rank owns. `buffers` are those of the plan.
std::vector<ShardedBuffer> sharded_buffers(const Group& group, const std::vector<Gradient>& gradients,
                                           const FusionPlan& plan, const std::vector<FusionBuffer>& buffers,
                                           bool shards_span_hosts);

}  // namespace smdp
