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

// Returns whether sums inside hosts are stored, and thereby rounded, before the sum over hosts.
inline bool stores_partial_sums(const Members& members) {
  return members.size > static_cast<int>(members.hosts.size());
}

// Local reduce_scatter into lanes, exchange of each lane across hosts, and local all_gather, pipelined by chunks across
// items.
Task hierarchical_all_reduce(Context& context, const Batch& batch, const Planner& planner);

// Every block is sent to every other host once and then spread there. blocks: by rank, its place in this rank's output
// (the caller fills this rank's own). slot: number of its messages; several calls in one operation need different ones.
Task hierarchical_all_gather(Context& context, std::vector<Bytes> blocks, std::uint64_t slot = 0);

// The sum for a rank on another host is formed on this host by one local rank, and sent once per pair of hosts. blocks:
// this rank's inputs by receiver; out: the sum for this rank.
Task hierarchical_reduce_scatter(Context& context, std::vector<ConstBytes> blocks, std::byte* out, Reduction reduction);

// A binomial tree over hosts and shared memory inside them, pipelined by chunks.
Task tree_broadcast(Context& context, std::byte* data, std::size_t size, int root);
Task tree_reduce(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                 int root);

// Every rank sends outgoing[j] to rank j and fills incoming[j]. Also used for gather and scatter.
Task pairwise(Context& context, std::vector<ConstBytes> outgoing, std::vector<Bytes> incoming);

Task hierarchical_barrier(Context& context);

}  // namespace smdp
