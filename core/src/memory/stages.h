// Which pieces lie on which rank.
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

// Virtual stages of every rank: stage k lies on rank k mod p, in V shape the second half runs backwards. Without
// stage_sizes layers are divided evenly and what remains goes to the middle, as the ends carry embedding and head.
// Throws InvalidArgument: more virtual stages than layers, or sizes that do not add up.
std::vector<std::vector<Span>> spans_of(const Pieces& pieces, const Setting& setting);

}  // namespace smdp::memory
