// Equal parts of a range of elements, aligned so that parts do not share cache lines.
#pragma once

#include <algorithm>
#include <cstddef>

namespace smdp {

struct Slice {
  std::size_t begin;  // elements
  std::size_t end;
  std::size_t size() const { return end - begin; }
};

// Part `index` of `parts` of [0, count): equal up to alignment to 64 bytes, the last ones may be shorter or empty.
inline Slice slice_of(std::size_t count, std::size_t parts, std::size_t index, std::size_t element_size) {
  const std::size_t align = std::max<std::size_t>(1, 64 / element_size);
  const std::size_t even = (count + parts - 1) / parts;
  const std::size_t step = (even + align - 1) / align * align;
  return {std::min(count, index * step), std::min(count, (index + 1) * step)};
}

}  // namespace smdp
