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
      has_fixed_ends_(one.codec != nullptr || algorithm == Algorithm::kRing) {
  const std::size_t element = size_of(one.reduction.dtype);
  most_ = std::max<std::size_t>(1, chunk_bytes(one.codec != nullptr, algorithm, sizes, hosts, lanes) / element);
  unit_ = hosts * lanes * std::max<std::size_t>(1, 64 / element);
  count_ = std::max<std::size_t>(1, (one.count + most_ - 1) / most_);
}

std::size_t Chunks::end(std::size_t k) const {
  const std::size_t units = (elements_ + unit_ - 1) / unit_;
  return std::min(elements_, has_fixed_ends_ ? (k + 1) * most_ : (k + 1) * units / count_ * unit_);
}

Chunk Chunks::at(std::size_t item, std::size_t k) const {
  const std::size_t begin = k == 0 ? 0 : end(k - 1);
  return {item, begin, end(k) - begin, k + 1 == count_};
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
    const Chunks chunks(one, result.algorithms.back(), batch.sizes(), hosts, lanes);
    for (std::size_t k = 0; k < chunks.count(); ++k) result.chunks.push_back(chunks.at(i, k));
  }
  return result;
}

}  // namespace smdp
