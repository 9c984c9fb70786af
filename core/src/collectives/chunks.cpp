#include "collectives/chunks.h"

#include <algorithm>

namespace smdp {
namespace {

// Size of one owner's shard before encoding.
constexpr std::size_t kCodedShardBytes = std::size_t{512} << 10;
// Size of a lane's chunk: every step of recursive doubling sends the whole chunk.
constexpr std::size_t kDoublingBytes = std::size_t{1} << 20;

}  // namespace

std::size_t chunk_bytes(bool is_coded, Algorithm algorithm, const cost::ExchangeSizes& sizes, std::size_t hosts,
                        std::size_t lanes) {
  if (is_coded) return kCodedShardBytes * hosts * lanes;
  if (algorithm == Algorithm::kRecursiveDoubling) return kDoublingBytes * lanes;
  return hosts * lanes * (algorithm == Algorithm::kRing ? cost::ExchangeSizes{}.shard : sizes.shard);
}

Chunks::Chunks(const Batch::Item& one, Algorithm algorithm, const cost::ExchangeSizes& sizes, std::size_t hosts,
               std::size_t lanes)
    : elements_(one.count),
      // A codec's loss depends on how its pieces are cut, and a ring's order of addition depends on the place. Chunks
      // for them are therefore full ones and a remainder, whatever is measured or tuned, and all hosts own a shard of
      // each.
      has_fixed_ends_(hosts > 1 && (one.codec != nullptr || algorithm == Algorithm::kRing)) {
  const std::size_t element = size_of(one.reduction.dtype);
  most_ = std::max<std::size_t>(1, chunk_bytes(one.codec != nullptr, algorithm, sizes, hosts, lanes) / element);
  unit_ = hosts * lanes * std::max<std::size_t>(1, 64 / element);
  // Inside one host nothing is exchanged, and shared memory has chunks of its own.
  const bool is_one = hosts == 1 || (one.ends != nullptr && has_several_owners(*one.ends));
  count_ = is_one ? 1 : std::max<std::size_t>(1, (one.count + most_ - 1) / most_);
}

std::size_t Chunks::end(std::size_t k) const {
  const std::size_t units = (elements_ + unit_ - 1) / unit_;
  if (k + 1 == count_) return elements_;
  return std::min(elements_, has_fixed_ends_ ? (k + 1) * most_ : (k + 1) * units / count_ * unit_);
}

Chunk Chunks::at(std::size_t item, std::size_t k) const {
  const std::size_t begin = k == 0 ? 0 : end(k - 1);
  return {item, begin, end(k) - begin, k + 1 == count_};
}

Cut cut(const Batch& batch, const Planner& planner, std::size_t hosts, std::size_t lanes) {
  const std::size_t bytes = batch.bytes();
  const Algorithm usual = batch.items().size() == 1 ? planner.host_exchange(bytes / lanes, hosts)
                                                    : planner.batch_exchange(bytes / lanes, hosts);
  Cut result;
  for (std::size_t i = 0; i < batch.items().size(); ++i) {
    const Batch::Item& one = batch.items()[i];
    const bool is_direct = one.codec != nullptr || one.part != Part::kWhole;
    result.algorithms.push_back(is_direct ? Algorithm::kDirect : usual);
    const Chunks chunks(one, result.algorithms.back(), batch.sizes(), hosts, lanes);
    for (std::size_t k = 0; k < chunks.count(); ++k) result.chunks.push_back(chunks.at(i, k));
  }
  return result;
}

Slice slice_of_lane(const Chunk& chunk, const Batch::Item& item, std::size_t lanes, std::size_t lane) {
  if (item.ends != nullptr) {
    const std::size_t owners = item.ends->size() / lanes;
    return common_part({chunk.begin, chunk.begin + chunk.size}, owned_range(*item.ends, lane * owners, owners));
  }
  const Slice within = slice_of(chunk.size, lanes, lane, size_of(item.reduction.dtype));
  return {chunk.begin + within.begin, chunk.begin + within.end};
}

Slice owned_by_host(const Slice& slice, const Batch::Item& item, std::size_t hosts, std::size_t host,
                    bool shards_span_hosts, std::size_t lane) {
  if (!shards_span_hosts) return {0, slice.size()};
  if (item.ends == nullptr) return shard_of(slice.size(), hosts, host, size_of(item.reduction.dtype));
  const Slice own = common_part(slice, owned_range(*item.ends, lane * hosts + host, 1));
  return {own.begin - slice.begin, own.end - slice.begin};
}

std::vector<Slice> owned_slices(const Batch::Item& item, const cost::ExchangeSizes& sizes, bool shards_span_hosts,
                                const std::vector<std::vector<int>>& hosts, std::size_t host, std::size_t local) {
  const std::size_t lanes = lanes_of(hosts);
  std::vector<Slice> owned;
  if (local >= lanes) return owned;
  const Chunks chunks(item, Algorithm::kDirect, sizes, hosts.size(), lanes);
  for (std::size_t k = 0; k < chunks.count(); ++k) {
    const Slice lane = slice_of_lane(chunks.at(0, k), item, lanes, local);
    const Slice within = owned_by_host(lane, item, hosts.size(), host, shards_span_hosts, local);
    if (within.size() != 0) owned.push_back({lane.begin + within.begin, lane.begin + within.end});
  }
  return owned;
}

}  // namespace smdp
