#include "cost/fusion_cost.h"

#include <algorithm>

namespace smdp::cost {
namespace {

constexpr double kUsual = 1 / 0.02;
constexpr double kSmallest = 1 / 0.1;
// Per host. Below them a busy host's scheduling, which the measurement does not see, takes more than the link.
constexpr std::size_t kUsualFloor = std::size_t{1} << 20;
constexpr std::size_t kSmallestFloor = std::size_t{128} << 10;

}  // namespace

FusionSizes fusion_sizes(const Measured& measured, std::size_t hosts, std::size_t cap) {
  const double product = measured.latency * measured.bandwidth;
  const auto bytes = [&](double factor, std::size_t floor) {
    return std::min(cap, std::max(floor, static_cast<std::size_t>(std::min(factor * product, 1e15))));
  };
  return {bytes(kUsual, hosts * kUsualFloor), bytes(kSmallest, hosts * kSmallestFloor)};
}

}  // namespace smdp::cost
