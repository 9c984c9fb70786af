#include "cost/exchange_cost.h"

#include <algorithm>

#include "cost/collective_cost.h"

namespace smdp::cost {
namespace {

constexpr double kMessagesPerWire = 10;
// For a lane's chunk and a shard: between two hosts with fast links, half of it takes a sixth more time.
constexpr std::size_t kShortestChunk = std::size_t{256} << 10;
constexpr std::size_t kShortest = std::size_t{32} << 10;
constexpr double kLongest = std::size_t{1} << 20;
// A packet, and a size that is never worth sending to a separate owner.
constexpr double kLeastFloor = 1 << 10;
constexpr double kLeastCeiling = std::size_t{64} << 10;

}  // namespace

std::size_t ExchangeSizes::owners(std::size_t bytes, std::size_t hosts) const {
  return std::clamp<std::size_t>(bytes / least, 1, hosts);
}

ExchangeSizes exchange_sizes(const Measured& measured, std::size_t hosts, std::size_t lanes) {
  if (hosts < 2) return {};
  const auto peers = static_cast<double>(hosts - 1);
  // Per lane: an all_reduce of S bytes sends 2 (M - 1) / M of S / lanes.
  const double wire = flow(measured, hosts, lanes) * 2 * peers / static_cast<double>(hosts * lanes);
  const double message = Network{}.message;
  const double by_messages = kMessagesPerWire * message * wire;
  const double by_latency = measured.latency * wire / (2 * peers);
  const auto shortest = static_cast<double>(std::max(kShortest, kShortestChunk / hosts));
  const double shard = std::clamp(std::max(by_messages, by_latency), shortest, kLongest);
  const double least = std::clamp(message * wire, kLeastFloor, kLeastCeiling);
  return {static_cast<std::size_t>(shard) / 64 * 64, static_cast<std::size_t>(least) / 64 * 64, measured.streams};
}

}  // namespace smdp::cost
