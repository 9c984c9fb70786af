// How large fusion buffers should be, from what a group's all_reduce was measured to take.
//
// An all_reduce of S bytes takes latency + S / bandwidth. Long buffers waste little on latency; short ones start
// earlier and leave less for after the last gradient.
#pragma once

#include <cstddef>
#include <limits>

namespace smdp::cost {

struct Measured {
  double latency = 100e-6;  // s, of the smallest all_reduce
  double bandwidth = 1e9;   // bytes of buffer per second
  double reduction = 10e9;  // bytes/s that a rank sums, of float32, counted where they are read
  // Connections to each peer that gave this bandwidth; fewer were slower. Default: all there are.
  std::size_t streams = std::numeric_limits<std::size_t>::max();
  std::size_t floats = 0;  // of the all_reduce that gave the bandwidth
};

// Bytes of buffer per second: as measured, but no more than a rank can sum. Inside a host it reads as much as a buffer
// holds, between hosts its lane of that; a short look at a fast link may promise more.
double flow(const Measured& measured, std::size_t hosts, std::size_t lanes);

struct FusionSizes {
  std::size_t usual;     // bytes; latency is 2 % of its time, or 1 MiB per host; its messages take no longer than it
  std::size_t alone;     // bytes; a gradient this large is its own buffer, where it lies: two copies less
  std::size_t smallest;  // bytes, of the first and the last; latency is 10 %, or 128 KiB per host
};

// lanes: ranks of a host that share its link. cap: most bytes of a buffer, unless there are so many hosts that their
// messages would take longer than the bytes.
FusionSizes fusion_sizes(const Measured& measured, std::size_t hosts, std::size_t lanes, std::size_t cap);

}  // namespace smdp::cost
