// How an all_reduce between hosts is cut: items into chunks, a chunk into one slice per lane, a slice into one shard
// per owner. Every rank computes this locally from what all ranks know.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "collectives/batch.h"
#include "collectives/planner.h"
#include "sharding/equal_shards.h"

namespace smdp {

struct Chunk {
  std::size_t item;
  std::size_t begin;  // element of the item
  std::size_t size;   // elements
  bool is_last;       // of its item
};

struct Cut {
  std::vector<Chunk> chunks;          // in the order in which they are sent
  std::vector<Algorithm> algorithms;  // between hosts, by item
};

// Returns how many ranks of every host exchange data with other hosts.
inline std::size_t lanes_of(const std::vector<std::vector<int>>& hosts) {
  std::size_t fewest = hosts.front().size();
  for (const std::vector<int>& host : hosts) fewest = std::min(fewest, host.size());
  return fewest;
}

// Returns the upper limit of a chunk's bytes. lanes: ranks of every host that exchange. Measurements (`sizes`) are
// ignored where the ends of shards determine what is lost or in what order a sum is formed.
std::size_t chunk_bytes(bool is_coded, Algorithm algorithm, const cost::ExchangeSizes& sizes, std::size_t hosts,
                        std::size_t lanes);

// How one item is cut. If the same number of hosts own a shard of each chunk, all shards of an item, over all its
// chunks, are equal to within 64 bytes: chunks differ in size by at most one unit, and each but the last is divided
// evenly between all owners. Shards with `ends` lie side by side in one chunk, so that their owners exchange them at
// the same time; a single owner's shard may have several chunks.
class Chunks {
 public:
  Chunks(const Batch::Item& one, Algorithm algorithm, const cost::ExchangeSizes& sizes, std::size_t hosts,
         std::size_t lanes);

  std::size_t count() const { return count_; }
  // Returns the k-th chunk of item number `item`.
  Chunk at(std::size_t item, std::size_t k) const;

 private:
  std::size_t end(std::size_t k) const;

  std::size_t elements_;
  std::size_t most_;  // maximum elements of a chunk
  std::size_t unit_;  // elements that all owners share evenly
  std::size_t count_;
  bool has_fixed_ends_;
};

// Cuts a batch. An empty item is one chunk, which ends when its turn comes.
Cut cut(const Batch& batch, const Planner& planner, std::size_t hosts, std::size_t lanes);

// Returns the part of a chunk that local rank `lane` exchanges, in elements of the item.
Slice slice_of_lane(const Chunk& chunk, const Batch::Item& item, std::size_t lanes, std::size_t lane);

// Returns how many hosts own a shard of a chunk that uses Algorithm::kDirect; the same in all lanes.
inline std::size_t owners_of(const Chunk& chunk, const cost::ExchangeSizes& sizes, std::size_t hosts, std::size_t lanes,
                             std::size_t element_size) {
  return sizes.owners(chunk.size * element_size / lanes, hosts);
}

// Returns a host's shard of `count` elements of a lane, if the first `owners` hosts own one shard each.
inline Slice shard_of(std::size_t count, std::size_t owners, std::size_t host, std::size_t element_size) {
  return host < owners ? slice_of(count, owners, host, element_size) : Slice{count, count};
}

// Returns what `host` owns of a lane's slice of an item that is not whole, in elements of the slice.
Slice owned_by_host(const Slice& slice, const Batch::Item& item, std::size_t hosts, std::size_t host,
                    bool shards_span_hosts, std::size_t lane);

// Returns what local rank `local` of a host owns of an item that is not whole: one slice of each chunk, in elements of
// the item. Empty for a rank that has no lane. hosts: the ranks of each.
std::vector<Slice> owned_slices(const Batch::Item& item, const cost::ExchangeSizes& sizes, bool shards_span_hosts,
                                const std::vector<std::vector<int>>& hosts, std::size_t host, std::size_t local);

}  // namespace smdp
