// CPU time that wire types take. A rank's one thread codes beside its local sums, while the link sends other chunks.
#pragma once

#include <cstddef>

namespace smdp::cost {

// Bytes of float32 per second and rank: what tests/benchmarks/wire_types.cpp gave on a server CPU with AVX-512.
struct Coding {
  double encode;      // a contribution
  double decode;      // of one host
  double encode_sum;  // an owner's
  double decode_sum;
  bool encodes_own;  // Codec::encodes_own()
};
inline constexpr Coding kCastCoding{20e9, 40e9, 30e9, 40e9, true};
inline constexpr Coding kInt8Coding{4.2e9, 30e9, 4.4e9, 30e9, false};
inline constexpr Coding kTopKCoding{1.3e9, 50e9, 5e9, 45e9, true};

// Seconds that a rank codes for an all_reduce between `hosts` of its lane of `bytes`: it encodes everybody's shards,
// decodes everybody's parts of its own, each with or without its own part, encodes its sum, and decodes all sums.
double coding(double bytes, std::size_t hosts, const Coding& rates);

}  // namespace smdp::cost
