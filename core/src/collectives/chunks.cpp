#include "collectives/chunks.h"

#include <algorithm>

namespace smdp {
namespace {

// Before encoding, of one owner.
constexpr std::size_t kCodedShardBytes = std::size_t{512} << 10;
// Of a lane: every step of recursive doubling sends the whole chunk.
constexpr std::size_t kDoublingBytes = std::size_t{1} << 20;

}  // namespace

std::size_t chunk_bytes(bool is_coded, Algorithm algorithm, const cost::ExchangeSizes& sizes, std::size_t hosts,
                        std::size_t lanes) {
  if (is_coded) return kCodedShardBytes * hosts * lanes;
  if (algorithm == Algorithm::kRecursiveDoubling) return kDoublingBytes * lanes;
  return hosts * lanes * (algorithm == Algorithm::kRing ? cost::ExchangeSizes{}.shard : sizes.shard);
}

std::vector<Chunk> chunks_of(std::size_t item, const Batch::Item& one, Algorithm algorithm,
                             const cost::ExchangeSizes& sizes, std::size_t hosts, std::size_t lanes) {
  const std::size_t element = size_of(one.reduction.dtype);
  const std::size_t most =
      std::max<std::size_t>(1, chunk_bytes(one.codec != nullptr, algorithm, sizes, hosts, lanes) / element);
  const std::size_t chunks = std::max<std::size_t>(1, (one.count + most - 1) / most);
  const std::size_t unit = hosts * lanes * std::max<std::size_t>(1, 64 / element);
  const std::size_t units = (one.count + unit - 1) / unit;
  // A codec loses what its pieces make it lose, and a ring adds in an order that depends on the place: their chunks
  // are full ones and a rest, whatever else is measured or tuned, and all hosts own a shard of each.
  const bool has_fixed_ends = one.codec != nullptr || algorithm == Algorithm::kRing;
  const auto end = [&](std::size_t k) {
    return std::min(one.count, has_fixed_ends ? (k + 1) * most : (k + 1) * units / chunks * unit);
  };
  std::vector<Chunk> result;
  for (std::size_t k = 0, begin = 0; k < chunks; begin = end(k++)) {
    result.push_back({item, begin, end(k) - begin, k + 1 == chunks});
  }
  return result;
}

Cut cut(const Batch& batch, const Planner& planner, std::size_t hosts, std::size_t lanes) {
  std::size_t bytes = 0;
  for (const Batch::Item& one : batch.items()) bytes += one.bytes();
  const Algorithm usual = batch.items().size() == 1 ? planner.host_exchange(bytes / lanes, hosts)
                                                    : planner.batch_exchange(bytes / lanes, hosts);
  Cut result;
  for (std::size_t i = 0; i < batch.items().size(); ++i) {
    const Batch::Item& one = batch.items()[i];
    result.algorithms.push_back(one.codec == nullptr ? usual : Algorithm::kDirect);
    const std::vector<Chunk> chunks = chunks_of(i, one, result.algorithms.back(), batch.sizes(), hosts, lanes);
    result.chunks.insert(result.chunks.end(), chunks.begin(), chunks.end());
  }
  return result;
}

}  // namespace smdp
