// Assigns pieces to ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "memory/pieces.h"

namespace smdp::memory {

// Pieces [begin, end) of a virtual stage.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Returns the virtual stages of every rank: stage k is on rank k mod p; in a V the second half runs in reverse. Without
// stage_sizes, layers are divided evenly and the remainder goes to the middle, because the ends have embedding and
// head. Throws InvalidArgument if there are more virtual stages than layers, or if sizes do not add up.
std::vector<std::vector<Span>> spans_of(const Pieces& pieces, const Setting& setting);

}  // namespace smdp::memory
