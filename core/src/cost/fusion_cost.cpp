#include "cost/fusion_cost.h"

#include <algorithm>

namespace smdp::cost {
namespace {

constexpr double kUsual = 1 / 0.02;
constexpr double kSmallest = 1 / 0.1;
constexpr std::size_t kFloor = std::size_t{64} << 10;  // below it messages, not bytes, take the time

}  // namespace

FusionSizes fusion_sizes(const Measured& measured, std::size_t cap) {
  const double product = measured.latency * measured.bandwidth;
  const auto bytes = [&](double factor) {
    return std::min(cap, std::max(kFloor, static_cast<std::size_t>(std::min(factor * product, 1e15))));
  };
  return {bytes(kUsual), bytes(kSmallest)};
}

}  // namespace smdp::cost
