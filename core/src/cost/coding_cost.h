// CPU time of compression. A rank's single thread codes beside its local sums, while the link sends other chunks.
#pragma once

#include <cstddef>

namespace smdp::cost {

// Bytes of float32 per second and rank, measured with tests/benchmarks/wire_types.cpp on a server CPU with AVX-512.
struct Coding {
  double encode;      // one contribution
  double decode;      // the contribution of one host
  double encode_sum;  // an owner's sum
  double decode_sum;
  bool encodes_own;  // see Codec::encodes_own()
};
inline constexpr Coding kCastCoding{20e9, 40e9, 30e9, 40e9, true};
inline constexpr Coding kInt8Coding{4.2e9, 30e9, 4.4e9, 30e9, false};
inline constexpr Coding kTopKCoding{1.3e9, 50e9, 5e9, 45e9, true};

// Returns the seconds in which a rank encodes and decodes its lane of `bytes` for an all_reduce between `hosts`: it
// encodes the shards of all owners, decodes all hosts' parts of its own shard, both with or without its own part,
// encodes its sum, and decodes all sums.
double coding(double bytes, std::size_t hosts, const Coding& rates);

}  // namespace smdp::cost
