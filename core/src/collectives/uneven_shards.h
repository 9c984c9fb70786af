// Shards that differ in length, for items of tensors that must not be cut. Owners follow one another in memory: all
// hosts of lane 0, then those of lane 1; one owner per lane if shards do not span hosts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sharding/equal_shards.h"

namespace smdp {

// Ends of the shards in elements of the item, by owner.
using ShardEnds = std::vector<std::size_t>;

// Returns what `count` owners have from number `first` on.
inline Slice owned_range(const ShardEnds& ends, std::size_t first, std::size_t count) {
  return {first == 0 ? 0 : ends[first - 1], ends[first + count - 1]};
}

// Returns the part of `slice` that is in `range`; an empty one lies within `slice`.
inline Slice common_part(const Slice& slice, const Slice& range) {
  return {std::clamp(range.begin, slice.begin, slice.end), std::clamp(range.end, slice.begin, slice.end)};
}

inline bool has_several_owners(const ShardEnds& ends) {
  const auto first = std::find_if(ends.begin(), ends.end(), [](std::size_t end) { return end != 0; });
  return first != ends.end() && *first != ends.back();
}

}  // namespace smdp
