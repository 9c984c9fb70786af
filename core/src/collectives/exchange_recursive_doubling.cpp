// Recursive doubling: in step k, hosts whose indices differ in bit k swap everything and add. Hosts beyond the largest
// power of two first hand their data to a partner and get the result from it at the end. Both partners add the lower
// host's data first, so all hosts end with the same bits.
#include <bit>
#include <vector>

#include "collectives/exchange.h"

namespace smdp {

Task exchange_recursive_doubling(Context& context, Lane lane, std::byte* data, std::size_t count, Reduction reduction) {
  const std::size_t hosts = lane.ranks.size();
  const std::size_t bytes = count * size_of(reduction.dtype);
  const std::size_t power = std::bit_floor(hosts);
  const std::size_t extra = hosts - power;
  const std::uint64_t last_slot = lane.slots + 100;
  std::vector<std::byte> scratch(bytes);
  Reduction partial = reduction;
  partial.divisor = 1;

  if (lane.me >= power) {
    const int partner = lane.ranks[lane.me - power];
    Link::Pending received = 0;
    Link::Pending sent = 0;
    context.receive(partner, last_slot, data, bytes, received);
    context.send(partner, lane.slots, data, bytes, sent);
    co_await settled(partner, sent);
    co_await settled(partner, received);
    co_return;
  }
  if (lane.me < extra) {
    const int partner = lane.ranks[lane.me + power];
    Link::Pending received = 0;
    context.receive(partner, lane.slots, scratch.data(), bytes, received);
    co_await settled(partner, received);
    const void* sources[] = {data, scratch.data()};
    if (bytes != 0) reduce(data, sources, 2, count, partial);
  }
  for (std::size_t bit = 1; bit < power; bit <<= 1) {
    const std::size_t other = lane.me ^ bit;
    const int partner = lane.ranks[other];
    const std::uint64_t slot = lane.slots + 1 + static_cast<std::uint64_t>(std::countr_zero(bit));
    Link::Pending received = 0;
    Link::Pending sent = 0;
    context.receive(partner, slot, scratch.data(), bytes, received);
    context.send(partner, slot, data, bytes, sent);
    co_await settled(partner, received);
    co_await settled(partner, sent);
    const void* sources[] = {other < lane.me ? scratch.data() : data, other < lane.me ? data : scratch.data()};
    if (bytes != 0) reduce(data, sources, 2, count, 2 * bit == power ? reduction : partial);
  }
  if (lane.me < extra) {
    const int partner = lane.ranks[lane.me + power];
    Link::Pending sent = 0;
    context.send(partner, last_slot, data, bytes, sent);
    co_await settled(partner, sent);
  }
}

}  // namespace smdp
