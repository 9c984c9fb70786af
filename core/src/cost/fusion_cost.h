// The size of fusion buffers, computed from measured times of a group's all_reduce.
//
// An all_reduce of S bytes takes latency + S / bandwidth. Large buffers waste little on latency; small ones start
// earlier and leave less to do after the last gradient.
#pragma once

#include <cstddef>
#include <limits>

namespace smdp::cost {

struct Measured {
  double latency = 100e-6;  // s, of the smallest all_reduce
  double bandwidth = 1e9;   // bytes of buffer per second
  double reduction = 10e9;  // bytes/s that a rank sums, of float32, counting the bytes read
  // Connections to each peer that gave this bandwidth; fewer were slower. Default: all existing ones.
  std::size_t streams = std::numeric_limits<std::size_t>::max();
  std::size_t floats = 0;  // size of the all_reduce that gave the bandwidth
};

// Returns the bytes of buffer per second: the measured bandwidth, but at most what a rank can sum. Inside a host a rank
// reads as many bytes as a buffer has, between hosts its lane of that; a short measurement of a fast link may suggest
// more.
double flow(const Measured& measured, std::size_t hosts, std::size_t lanes);

struct FusionSizes {
  std::size_t usual;     // bytes; latency is 2 % of its time, or 1 MiB per host; its messages take no longer than its
                         // bytes
  std::size_t alone;     // bytes; a gradient at least this large is summed in place as its own buffer, which saves two
                         // copies
  std::size_t smallest;  // bytes, of the first and the last; latency is 10 %, or 128 KiB per host
};

// lanes: ranks of a host that share its link. cap: maximum bytes of a buffer, unless there are so many hosts that their
// messages would take longer than the bytes.
FusionSizes fusion_sizes(const Measured& measured, std::size_t hosts, std::size_t lanes, std::size_t cap);

}  // namespace smdp::cost
