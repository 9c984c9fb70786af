// All-reduce of one lane across hosts. One rank of each host holds that host's partial sum in `data` and ends with the
// sum over all hosts in its place. The algorithms differ in the number of steps and the order of the sum.
//
// For S bytes and M hosts:
//   direct               2 steps                 2 (M - 1) / M S bytes   sum in host order
//   ring                 2 (M - 1) steps         2 (M - 1) / M S bytes   sum in ring order, per shard
//   recursive_doubling   ceil(log2 M) steps      S log2 M bytes          sum in tree order
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/codec.h"
#include "collectives/context.h"
#include "reduce/reduce.h"
#include "sharding/equal_shards.h"

namespace smdp {

struct Lane {
  std::vector<int> ranks;  // one per host, in host order
  std::size_t me = 0;      // index of this rank
  std::uint64_t slots;     // first of kSlotsPerExchange message numbers reserved for it
};
inline constexpr std::uint64_t kSlotsPerExchange = 4096;

// The hops of a direct exchange: partial sums go to their owners, and sums from their owners to all hosts.
enum class Hops : std::uint8_t { kBoth, kToOwners, kFromOwners };

// shards: by host, in elements of `data`; empty for a host that owns nothing.
Task exchange_direct(Context& context, Lane lane, std::byte* data, Reduction reduction, std::vector<Slice> shards,
                     Hops hops = Hops::kBoth);
Task exchange_ring(Context& context, Lane lane, std::byte* data, std::size_t count, Reduction reduction);
// Sends float32 through a codec. offset: position of `data` within the codec's buffer. shards: see exchange_direct().
// hops: kBoth or kToOwners. After kToOwners an owner has the sum that it would have encoded for the second hop.
Task exchange_coded(Context& context, Lane lane, float* data, std::size_t offset, std::vector<Slice> shards,
                    Codec& codec, Hops hops = Hops::kBoth);
Task exchange_recursive_doubling(Context& context, Lane lane, std::byte* data, std::size_t count, Reduction reduction);

}  // namespace smdp
