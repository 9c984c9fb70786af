#include "cost/fusion_cost.h"

#include <algorithm>

#include "cost/collective_cost.h"

namespace smdp::cost {
namespace {

constexpr double kUsual = 1 / 0.02;
constexpr double kSmallest = 1 / 0.1;
// Per host. Below this, a busy host's scheduling, which the measurement does not see, takes longer than the link.
constexpr std::size_t kUsualFloor = std::size_t{1} << 20;
constexpr std::size_t kAlone = std::size_t{256} << 10;
constexpr std::size_t kSmallestFloor = std::size_t{128} << 10;

}  // namespace

double flow(const Measured& measured, std::size_t hosts, std::size_t lanes) {
  const double inside = lanes > 1 ? 1 : 0;
  const double across = hosts > 1 ? 1 / static_cast<double>(lanes) : 0;
  if (inside + across == 0) return measured.bandwidth;
  return std::min(measured.bandwidth, measured.reduction / (inside + across));
}

FusionSizes fusion_sizes(const Measured& measured, std::size_t hosts, std::size_t lanes, std::size_t cap) {
  const double bandwidth = flow(measured, hosts, lanes);
  const double product = measured.latency * bandwidth;
  const auto bytes = [&](double factor, std::size_t floor) {
    return std::min(cap, std::max(floor, static_cast<std::size_t>(std::min(factor * product, 1e15))));
  };
  const double messages = 2 * static_cast<double>(hosts - 1) * Network{}.message;
  const auto least = static_cast<std::size_t>(std::min(messages * bandwidth, 1e15));
  return {std::max(least, bytes(kUsual, hosts * kUsualFloor)), hosts * kAlone,
          bytes(kSmallest, hosts * kSmallestFloor)};
}

}  // namespace smdp::cost
