// Time over a link by the alpha-beta model (Hockney, 1994), for plans: from figures that the user gives, not measured.
#pragma once

#include <cstddef>

#include "smdp/export.h"

namespace smdp::cost {

struct Link {
  double latency = 0;    // seconds per message
  double bandwidth = 0;  // bytes/s per direction; 0: only the latency counts
};

// Returns the seconds of one message.
SMDP_API double transfer(double bytes, const Link& link);

// Returns the seconds of an all_reduce that sends the minimum: 2 (n - 1) / n of the bytes from each of n ranks.
SMDP_API double all_reduce(double bytes, std::size_t ranks, const Link& link);

}  // namespace smdp::cost
