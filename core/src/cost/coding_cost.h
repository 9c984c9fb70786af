// CPU time that wire types take. A rank's one thread codes beside its local sums, while the link sends other chunks.
#pragma once

#include <cstddef>

namespace smdp::cost {

// Bytes of float32 per second and rank. Measured on 2 cores of a server CPU with AVX-512, pieces of 64 KiB to 256 KiB.
struct Coding {
  double encode;      // a contribution
  double decode;      // of one host
  double encode_sum;  // an owner's
  double decode_sum;
};
inline constexpr Coding kCastCoding{20e9, 40e9, 30e9, 40e9};
inline constexpr Coding kInt8Coding{4.2e9, 30e9, 4.4e9, 30e9};
inline constexpr Coding kTopKCoding{1e9, 60e9, 3e9, 40e9};

// Seconds that a rank codes for an all_reduce between `hosts` of its lane of `bytes`: it encodes all of it, and as an
// owner decodes its share of everybody's, encodes the sum; decodes the sums of all.
double coding(double bytes, std::size_t hosts, const Coding& rates);

}  // namespace smdp::cost
