#include <algorithm>
#include <utility>

#include "sharding/check.h"
#include "sharding/equal_shards.h"
#include "smdp/sharding.h"

namespace smdp::sharding {

ParameterShards::ParameterShards(std::vector<Parameter> parameters, std::int64_t ranks)
    : parameters_(std::move(parameters)), ranks_(ranks) {
  check_count("ranks", ranks, 1, kMostRanks);
  check(parameters_);
  std::int64_t end = 0;
  for (const Parameter& parameter : parameters_) {
    const std::int64_t size = parameter.element_size;
    const std::int64_t begin = (end + size - 1) / size * size;
    begins_.push_back(begin);
    end = begin + size_of(parameter);
    if (end > kMostBytes) throw InvalidArgument("[smdp] all parameters together have more than 2^60 bytes.");
  }
  begins_.push_back(end);
}

ParameterShards::Bounds ParameterShards::bounds(std::int64_t rank) const {
  check_count("rank", rank, 0, ranks_ - 1);
  const Slice slice =
      slice_of(static_cast<std::size_t>(bytes()), static_cast<std::size_t>(ranks_), static_cast<std::size_t>(rank), 1);
  return {static_cast<std::int64_t>(slice.begin), static_cast<std::int64_t>(slice.end)};
}

std::int64_t ParameterShards::bytes(std::int64_t rank) const {
  const Bounds shard = bounds(rank);
  return shard.end - shard.begin;
}

std::vector<Piece> ParameterShards::pieces(std::int64_t rank) const {
  const Bounds shard = bounds(rank);
  std::vector<Piece> found;
  // The last parameter that begins at or before the shard; empty parameters begin where the next one does.
  const auto after = std::upper_bound(begins_.begin(), begins_.end() - 1, shard.begin);
  auto at = static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, after - begins_.begin() - 1));
  for (; at < parameters_.size() && begins_[at] < shard.end; ++at) {
    const std::int64_t begin = std::max(shard.begin, begins_[at]);
    const std::int64_t end = std::min(shard.end, begins_[at] + size_of(parameters_[at]));
    if (begin < end) found.push_back({at, begin - begins_[at], end - begins_[at], begin - shard.begin});
  }
  return found;
}

std::vector<Owner> ParameterShards::owners(std::int64_t parameter) const {
  check_count("parameter", parameter, 0, static_cast<std::int64_t>(parameters_.size()) - 1);
  const auto index = static_cast<std::size_t>(parameter);
  const std::int64_t first = begins_[index];
  const std::int64_t last = first + size_of(parameters_[index]);
  // The first rank whose shard ends behind the parameter's beginning.
  std::int64_t rank = 0;
  for (std::int64_t low = 0, high = ranks_ - 1; low <= high;) {
    const std::int64_t middle = low + (high - low) / 2;
    if (bounds(middle).end > first) {
      rank = middle;
      high = middle - 1;
    } else {
      low = middle + 1;
    }
  }
  std::vector<Owner> found;
  for (; rank < ranks_; ++rank) {
    const Bounds shard = bounds(rank);
    const std::int64_t begin = std::max(shard.begin, first);
    const std::int64_t end = std::min(shard.end, last);
    if (begin < end) found.push_back({rank, {index, begin - first, end - first, begin - shard.begin}});
    if (shard.end >= last) break;
  }
  return found;
}

}  // namespace smdp::sharding
