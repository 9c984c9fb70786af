// Which activations are kept, and which are recomputed in backward.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "memory/pieces.h"
#include "memory/stages.h"

namespace smdp::memory {

struct Checkpointing {
  std::int64_t group = 0;  // layers per checkpoint; 0: no whole layer is recomputed
  bool is_selective = false;
};

// Parses none, each, group_N, contiguous or selective. Throws InvalidArgument.
Checkpointing parse_checkpointing(const std::string& name);

struct Kept {
  double bytes = 0;    // per microbatch in flight
  double rebuilt = 0;  // once: the largest group, while it runs backward
  double blocks = 0;   // layers or groups, which offloading moves one by one
};

// A group never extends over a cut.
Kept kept(const std::vector<Piece>& pieces, const Span& span, const Checkpointing& checkpointing);

}  // namespace smdp::memory
