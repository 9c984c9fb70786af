#include "smdp/link_cost.h"

namespace smdp::cost {

double transfer(double bytes, const Link& link) {
  return link.latency + (link.bandwidth > 0 ? bytes / link.bandwidth : 0);
}

double all_reduce(double bytes, std::size_t ranks, const Link& link) {
  if (ranks < 2) return 0;
  const auto n = static_cast<double>(ranks);
  return transfer(2 * (n - 1) / n * bytes, link);
}

}  // namespace smdp::cost
