// Time over a link by the alpha-beta model (Hockney, 1994), for plans: figures that the user names, not measured ones.
#pragma once

#include <cstddef>

#include "smdp/export.h"

namespace smdp::cost {

struct Link {
  double latency = 0;    // s, of one message
  double bandwidth = 0;  // bytes/s per direction; 0: the latency alone
};

// Seconds of one message.
SMDP_API double transfer(double bytes, const Link& link);

// Seconds of an all_reduce that sends as little as can be: 2 (n - 1) / n of the bytes from each of n ranks.
SMDP_API double all_reduce(double bytes, std::size_t ranks, const Link& link);

}  // namespace smdp::cost
