// Recursive doubling: in step k, hosts whose indices differ in bit k exchange all data and add. Hosts beyond the
// largest power of two first send their data to a partner and get the result from it at the end. Both partners add the
// lower host's data first, so all hosts end with the same bits.
//
// All receives are posted at once, because of two chunks in flight either may arrive first.
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
  std::vector<std::vector<std::byte>> scratch;
  const Reduction partial = middle_stage(reduction);

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
  const auto steps = static_cast<std::size_t>(std::countr_zero(power));
  scratch.assign(1 + steps, std::vector<std::byte>(bytes));
  std::vector<Link::Pending> received(1 + steps, 0);
  if (lane.me < extra) context.receive(lane.ranks[lane.me + power], lane.slots, scratch[0].data(), bytes, received[0]);
  for (std::size_t step = 0; step < steps; ++step) {
    const int partner = lane.ranks[lane.me ^ (std::size_t{1} << step)];
    context.receive(partner, lane.slots + 1 + step, scratch[1 + step].data(), bytes, received[1 + step]);
  }

  if (lane.me < extra) {
    co_await settled(lane.ranks[lane.me + power], received[0]);
    const void* sources[] = {data, scratch[0].data()};
    if (bytes != 0) reduce(data, sources, 2, count, partial);
  }
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t bit = std::size_t{1} << step;
    const std::size_t other = lane.me ^ bit;
    const int partner = lane.ranks[other];
    const std::byte* theirs = scratch[1 + step].data();
    Link::Pending sent = 0;
    context.send(partner, lane.slots + 1 + step, data, bytes, sent);
    co_await settled(partner, received[1 + step]);
    co_await settled(partner, sent);
    const void* sources[] = {other < lane.me ? theirs : data, other < lane.me ? data : theirs};
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
