// How an exchange between hosts is cut. These sizes may depend on a measurement, because they do not affect the order
// of a sum.
#pragma once

#include <cstddef>
#include <limits>

#include "cost/fusion_cost.h"

namespace smdp::cost {

struct ExchangeSizes {
  std::size_t shard = std::size_t{128} << 10;  // bytes of one owner's shard in a chunk of a lane
  std::size_t least = std::size_t{4} << 10;    // bytes; there are fewer owners if shards would be shorter
  std::size_t streams = std::numeric_limits<std::size_t>::max();  // to each peer; at most the existing ones

  // Returns how many of `hosts`, at least 1, own a shard of `bytes` of a lane; they are the first ones.
  std::size_t owners(std::size_t bytes, std::size_t hosts) const;
};

// lanes: ranks of a host that share its link.
//
// A chunk keeps its link busy for as long as the two hops of the previous one take, and ten times as long as its
// messages take the CPU. A shard of it is at most 1 MiB, because the last chunk's second hop overlaps nothing, and at
// least 32 KiB, or what gives a chunk of 256 KiB. An owner is worth its messages if the bytes that it takes over from
// the others would travel longer than these cost.
ExchangeSizes exchange_sizes(const Measured& measured, std::size_t hosts, std::size_t lanes);

}  // namespace smdp::cost
