// Equal shards of a range of elements, for owners of fusion buffers, lanes and chunks.
#pragma once

#include <algorithm>
#include <cstddef>

namespace smdp {

struct Slice {
  std::size_t begin;  // elements
  std::size_t end;
  std::size_t size() const { return end - begin; }
};

// Returns part `index` of `parts` of [0, count). Parts begin at multiples of 64 bytes, so that two owners never share a
// cache line, and differ by at most 64 bytes; so do parts of parts.
inline Slice slice_of(std::size_t count, std::size_t parts, std::size_t index, std::size_t element_size) {
  const std::size_t unit = std::max<std::size_t>(1, 64 / element_size);
  const std::size_t units = (count + unit - 1) / unit;
  const std::size_t even = units / parts;
  // The last parts get one unit more, because the very last unit may be incomplete.
  const std::size_t shorter = parts - units % parts;
  const auto begin = [&](std::size_t i) {
    return std::min(count, (i * even + (i > shorter ? i - shorter : 0)) * unit);
  };
  return {begin(index), begin(index + 1)};
}

// Returns the largest number of elements of a part.
inline std::size_t longest_slice(std::size_t count, std::size_t parts, std::size_t element_size) {
  const std::size_t unit = std::max<std::size_t>(1, 64 / element_size);
  const std::size_t units = (count + unit - 1) / unit;
  return (units + parts - 1) / parts * unit;
}

}  // namespace smdp
