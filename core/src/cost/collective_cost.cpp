#include "cost/collective_cost.h"

#include <bit>
#include <cmath>

namespace smdp::cost {

// Every rank reads every input.
double one_shot(double bytes, std::size_t ranks, const SharedMemory& memory) {
  return memory.wait + bytes * static_cast<double>(ranks - 1) / memory.fetch;
}

// Inputs to their owner and sums back: each moves (W - 1) / W of the bytes, after a separate wait.
double two_shot(double bytes, std::size_t ranks, const SharedMemory& memory) {
  const auto w = static_cast<double>(ranks);
  return 2 * memory.wait + 2 * (w - 1) / w * bytes / memory.fetch_in_place;
}

double direct(double bytes, std::size_t hosts, const Network& network) {
  const auto m = static_cast<double>(hosts);
  return 2 * (network.hop + (m - 1) * network.message) + 2 * (m - 1) / m * bytes / network.bandwidth +
         bytes / network.sum;
}

double ring(double bytes, std::size_t hosts, const Network& network) {
  const auto m = static_cast<double>(hosts);
  return 2 * (m - 1) * (network.hop + network.message) + 2 * (m - 1) / m * bytes / network.bandwidth +
         bytes / network.sum;
}

// Hosts beyond a power of two cost two more messages of all data.
double recursive_doubling(double bytes, std::size_t hosts, const Network& network) {
  const auto steps = static_cast<double>(std::bit_width(hosts) - 1) + (std::has_single_bit(hosts) ? 0 : 2);
  return steps * (network.hop + network.message + bytes / network.bandwidth + 2 * bytes / network.sum);
}

}  // namespace smdp::cost
