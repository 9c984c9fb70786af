// Direct exchange of encoded pieces. Like exchange_direct, except that a host encodes its partial sum for the owner,
// and the owner decodes, sums in float32 in host order, and encodes the sum once for all. The owner uses the encoded
// sum itself, so that all hosts end with the same bits.
#include <vector>

#include "collectives/exchange.h"

namespace smdp {

Task exchange_coded(Context& context, Lane lane, float* data, std::size_t offset, std::vector<Slice> shards,
                    Codec& codec, Hops hops) {
  const std::size_t hosts = lane.ranks.size();
  const Slice own = shards[lane.me];
  const std::size_t own_bytes = codec.encoded_bytes(own.size());
  std::vector<std::vector<std::byte>> outgoing(hosts);
  std::vector<std::vector<std::byte>> incoming(hosts);
  std::vector<std::vector<std::byte>> sums(hosts);
  std::vector<Link::Pending> partials(hosts, 0);
  std::vector<Link::Pending> results(hosts, 0);
  Link::Pending sends = 0;

  for (std::size_t host = 0; host < hosts; ++host) {
    if (host != lane.me) {
      incoming[host].resize(own_bytes);
      context.receive(lane.ranks[host], lane.slots, incoming[host].data(), own_bytes, partials[host]);
    }
    if (hops == Hops::kToOwners) continue;
    sums[host].resize(codec.sum_bytes(shards[host].size(), hosts));
    if (host == lane.me) continue;
    context.receive(lane.ranks[host], lane.slots + 1, sums[host].data(), sums[host].size(), results[host]);
  }
  for (std::size_t step = 1; step < hosts; ++step) {
    const std::size_t host = (lane.me + step) % hosts;  // every host starts with a different owner
    const Slice theirs = shards[host];
    outgoing[host].resize(codec.encoded_bytes(theirs.size()));
    codec.encode(offset + theirs.begin, data + theirs.begin, theirs.size(), outgoing[host].data());
    context.send(lane.ranks[host], lane.slots, outgoing[host].data(), outgoing[host].size(), sends);
  }

  std::vector<std::vector<float>> decoded(hosts);
  std::vector<const void*> sources(hosts);
  for (std::size_t host = 0; host < hosts; ++host) {
    sources[host] = data + own.begin;
    if (host == lane.me && !codec.encodes_own()) continue;
    if (host == lane.me) {
      incoming[host].resize(own_bytes);
      codec.encode(offset + own.begin, data + own.begin, own.size(), incoming[host].data());
    } else {
      co_await settled(lane.ranks[host], partials[host]);
    }
    decoded[host].resize(own.size());
    codec.decode(incoming[host].data(), own.size(), decoded[host].data());
    sources[host] = decoded[host].data();
  }
  if (own.size() != 0) {
    reduce(data + own.begin, sources.data(), hosts, own.size(), {DType::kFloat32, ReduceOp::kSum});
  }
  if (hops == Hops::kToOwners) {
    co_await settled(lane.ranks[(lane.me + 1) % hosts], sends);
    co_return;
  }
  codec.encode_sum(offset + own.begin, data + own.begin, own.size(), hosts, sums[lane.me].data());
  for (std::size_t step = 1; step < hosts; ++step) {
    const std::size_t host = (lane.me + step) % hosts;
    context.send(lane.ranks[host], lane.slots + 1, sums[lane.me].data(), sums[lane.me].size(), sends);
  }
  for (std::size_t host = 0; host < hosts; ++host) {
    if (host != lane.me) co_await settled(lane.ranks[host], results[host]);
    codec.decode_sum(sums[host].data(), shards[host].size(), hosts, data + shards[host].begin);
  }
  co_await settled(lane.ranks[(lane.me + 1) % hosts], sends);
}

}  // namespace smdp
