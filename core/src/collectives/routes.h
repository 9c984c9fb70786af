// Chooses a collective's algorithm by where the ranks are: on one host or several. Sets context.algorithm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/batch.h"
#include "collectives/context.h"
#include "collectives/local.h"
#include "collectives/planner.h"

namespace smdp {

// factor: multiplies this rank's input, for kPremulSum.
Task routed_all_reduce(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                       double factor, const Planner& planner);
Task routed_all_reduce_batch(Context& context, const Batch& batch, const Planner& planner);
// out: null except on the root.
Task routed_reduce(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                   int root, double factor);
Task routed_broadcast(Context& context, Bytes data, int root);
// blocks: places in this rank's output, by rank. `in` may be this rank's own block. slot: see
// hierarchical_all_gather().
Task routed_all_gather(Context& context, std::vector<Bytes> blocks, ConstBytes in, std::uint64_t slot = 0);
// blocks: this rank's inputs, by receiver.
Task routed_reduce_scatter(Context& context, std::vector<ConstBytes> blocks, std::byte* out, Reduction reduction,
                           double factor);

}  // namespace smdp
