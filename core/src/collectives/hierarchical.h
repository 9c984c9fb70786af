// Collectives of groups that span hosts: shared memory inside a host, links between hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/batch.h"
#include "collectives/context.h"
#include "collectives/local.h"
#include "collectives/planner.h"

namespace smdp {

// Whether sums inside hosts are stored, and so rounded, before the sum over hosts.
inline bool stores_partial_sums(const Members& members) {
  return members.size > static_cast<int>(members.hosts.size());
}

// Local reduce_scatter into lanes, exchange of each lane across hosts, local all_gather; pipelined by chunks, from one
// item to the next.
Task hierarchical_all_reduce(Context& context, const Batch& batch, const Planner& planner);

// Every block crosses to every other host once, then spreads there. blocks: by rank, the place in this rank's output
// (its own one is filled by the caller). slot: the number of its messages; several in one operation need different
// ones.
Task hierarchical_all_gather(Context& context, std::vector<Bytes> blocks, std::uint64_t slot = 0);

// Sums for a rank on another host are formed here first, by one local rank, and cross once per pair of hosts.
// blocks: this rank's inputs by receiver; out: the sum for this rank.
Task hierarchical_reduce_scatter(Context& context, std::vector<ConstBytes> blocks, std::byte* out, Reduction reduction);

// Binomial tree over hosts, shared memory inside, pipelined by chunks.
Task tree_broadcast(Context& context, std::byte* data, std::size_t size, int root);
Task tree_reduce(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                 int root);

// Every rank sends outgoing[j] to j and fills incoming[j]; also gather and scatter.
Task pairwise(Context& context, std::vector<ConstBytes> outgoing, std::vector<Bytes> incoming);

Task hierarchical_barrier(Context& context);

}  // namespace smdp
