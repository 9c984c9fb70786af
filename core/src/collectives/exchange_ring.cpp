// Ring: in step s of the first half, host h sends shard h - s to its right neighbor and adds shard h - s - 1, which
// comes from the left. After M - 1 steps it owns all of shard h + 1. The second half passes the results on.
//
// A rank waits for its sends only at the end, so it always takes what comes from the left. If ranks waited for their
// right neighbors, the ring would deadlock. The result of a shard arrives after all have received what was sent of it.
#include <vector>

#include "collectives/exchange.h"
#include "sharding/equal_shards.h"

namespace smdp {

Task exchange_ring(Context& context, Lane lane, std::byte* data, std::size_t count, Reduction reduction) {
  const std::size_t hosts = lane.ranks.size();
  const std::size_t element = size_of(reduction.dtype);
  const int left = lane.ranks[(lane.me + hosts - 1) % hosts];
  const int right = lane.ranks[(lane.me + 1) % hosts];
  const auto shard = [&](std::size_t index) { return slice_of(count, hosts, index % hosts, element); };
  Link::Pending sent = 0;
  std::vector<std::byte> scratch(longest_slice(count, hosts, element) * element);

  for (std::size_t step = 0; step + 1 < hosts; ++step) {
    const Slice out = shard(lane.me + hosts - step);
    const Slice in = shard(lane.me + 2 * hosts - step - 1);
    Link::Pending received = 0;
    context.receive(left, lane.slots + step, scratch.data(), in.size() * element, received);
    context.send(right, lane.slots + step, data + out.begin * element, out.size() * element, sent);
    co_await settled(left, received);
    if (in.size() != 0) {
      const bool is_last = step + 2 == hosts;
      const void* sources[] = {scratch.data(), data + in.begin * element};
      reduce(data + in.begin * element, sources, 2, in.size(), is_last ? reduction : middle_stage(reduction));
    }
  }
  for (std::size_t step = 0; step + 1 < hosts; ++step) {
    const Slice out = shard(lane.me + 1 + hosts - step);
    const Slice in = shard(lane.me + hosts - step);
    Link::Pending received = 0;
    context.receive(left, lane.slots + hosts + step, data + in.begin * element, in.size() * element, received);
    context.send(right, lane.slots + hosts + step, data + out.begin * element, out.size() * element, sent);
    co_await settled(left, received);
  }
  co_await settled(right, sent);
}

}  // namespace smdp
