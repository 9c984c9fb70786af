// Direct exchange (SMDDP's parameter-server dataflow): host m owns shard m. Every host sends each owner its shard; the
// owners sum in host order and send the result back. This takes two hops for any number of hosts. With fewer owners,
// each owns a longer shard. A sharded step takes one hop at a time.
#include <vector>

#include "collectives/exchange.h"

namespace smdp {

Task exchange_direct(Context& context, Lane lane, std::byte* data, Reduction reduction, std::vector<Slice> shards,
                     Hops hops) {
  const std::size_t hosts = lane.ranks.size();
  const std::size_t element = size_of(reduction.dtype);
  const Slice own = shards[lane.me];
  const bool is_owner = own.size() != 0;
  const bool sends_partials = hops != Hops::kFromOwners;
  const bool sends_results = hops != Hops::kToOwners;
  std::vector<std::byte> scratch(hosts * own.size() * element);
  std::vector<Link::Pending> partials(hosts, 0);
  std::vector<Link::Pending> results(hosts, 0);
  Link::Pending sends = 0;

  for (std::size_t host = 0; host < hosts; ++host) {
    if (host == lane.me) continue;
    if (is_owner && sends_partials) {
      context.receive(lane.ranks[host], lane.slots, scratch.data() + host * own.size() * element, own.size() * element,
                      partials[host]);
    }
    // A result can arrive only after the peer has received all of this rank's part of that shard, so the two do not
    // overlap in time.
    if (shards[host].size() != 0 && sends_results) {
      context.receive(lane.ranks[host], lane.slots + 1, data + shards[host].begin * element,
                      shards[host].size() * element, results[host]);
    }
  }
  for (std::size_t step = 1; step < hosts && sends_partials; ++step) {
    const std::size_t host = (lane.me + step) % hosts;  // every host starts with a different owner
    if (shards[host].size() == 0) continue;
    context.send(lane.ranks[host], lane.slots, data + shards[host].begin * element, shards[host].size() * element,
                 sends);
  }

  std::vector<const void*> sources(hosts);
  for (std::size_t host = 0; host < hosts; ++host) {
    if (host != lane.me) co_await settled(lane.ranks[host], partials[host]);
    sources[host] = host == lane.me ? data + own.begin * element : scratch.data() + host * own.size() * element;
  }
  if (is_owner && sends_partials) reduce(data + own.begin * element, sources.data(), hosts, own.size(), reduction);
  for (std::size_t step = 1; step < hosts && is_owner && sends_results; ++step) {
    const std::size_t host = (lane.me + step) % hosts;
    context.send(lane.ranks[host], lane.slots + 1, data + own.begin * element, own.size() * element, sends);
  }
  for (std::size_t host = 0; host < hosts; ++host) {
    if (host != lane.me) co_await settled(lane.ranks[host], results[host]);
  }
  co_await settled(lane.ranks[(lane.me + 1) % hosts], sends);
}

}  // namespace smdp
