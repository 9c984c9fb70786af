// How an all_reduce between hosts is cut: items into chunks, a chunk into one slice per lane, a slice into one shard
// per owner. Every rank computes it by itself, from what all ranks know.
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
  std::vector<Chunk> chunks;          // in the order in which they go
  std::vector<Algorithm> algorithms;  // between hosts, by item
};

// Ranks of every host that exchange with those of the others.
inline std::size_t lanes_of(const std::vector<std::vector<int>>& hosts) {
  std::size_t fewest = hosts.front().size();
  for (const std::vector<int>& host : hosts) fewest = std::min(fewest, host.size());
  return fewest;
}

// Bytes of an item that no chunk exceeds. lanes: ranks of every host that exchange. A measurement (sizes) has no say
// where ends of shards decide what is lost, or in what order a sum is formed.
std::size_t chunk_bytes(bool is_coded, Algorithm algorithm, const cost::ExchangeSizes& sizes, std::size_t hosts,
                        std::size_t lanes);

// How one item is cut. All shards of an item are equal to within 64 bytes, over all its chunks, if as many hosts own
// one of each: chunks have the same size, but for a unit, and each but the last one divides evenly between all owners.
class Chunks {
 public:
  Chunks(const Batch::Item& one, Algorithm algorithm, const cost::ExchangeSizes& sizes, std::size_t hosts,
         std::size_t lanes);

  std::size_t count() const { return count_; }
  // Of item number `item`, the k-th.
  Chunk at(std::size_t item, std::size_t k) const;

 private:
  std::size_t end(std::size_t k) const;

  std::size_t elements_;
  std::size_t most_;  // elements of a chunk
  std::size_t unit_;  // elements that divide evenly between all owners
  std::size_t count_;
  bool has_fixed_ends_;
};

// An empty item is a chunk, too: it ends when its turn comes.
Cut cut(const Batch& batch, const Planner& planner, std::size_t hosts, std::size_t lanes);

// What local rank `lane` exchanges of a chunk: elements of the item.
inline Slice slice_of_lane(const Chunk& chunk, std::size_t lanes, std::size_t lane, std::size_t element_size) {
  const Slice within = slice_of(chunk.size, lanes, lane, element_size);
  return {chunk.begin + within.begin, chunk.begin + within.end};
}

// How many hosts own a shard of a chunk that goes by Algorithm::kDirect; the same in all lanes.
inline std::size_t owners_of(const Chunk& chunk, const cost::ExchangeSizes& sizes, std::size_t hosts, std::size_t lanes,
                             std::size_t element_size) {
  return sizes.owners(chunk.size * element_size / lanes, hosts);
}

// What a host owns of `count` elements of a lane, where the first `owners` hosts own a shard each.
inline Slice shard_of(std::size_t count, std::size_t owners, std::size_t host, std::size_t element_size) {
  return host < owners ? slice_of(count, owners, host, element_size) : Slice{count, count};
}

}  // namespace smdp
