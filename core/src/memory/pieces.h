// The pieces that stages consist of, as one tensor-parallel rank holds them.
#pragma once

#include <cstddef>
#include <vector>

#include "smdp/memory.h"

namespace smdp::memory {

struct Piece {
  double parameters = 0;    // elements
  double activations = 0;   // bytes of a microbatch kept without recomputation; of layers and units of a trace
  double rebuilt = 0;       // part of these that selective checkpointing drops
  double gradients = 0;     // bytes of gradients of activations while it runs backward
  double input = 0;         // bytes that a checkpoint keeps, and that a stage beginning here receives
  double embedding = 0;     // bytes of a microbatch, whatever the checkpointing
  double logits = 0;        // bytes of a microbatch
  double logits_extra = 0;  // bytes while it runs backward
  bool is_layer = false;  // counts in stage_sizes and may be recomputed; the first and the last stage get the embedding
                          // and the head, and a decoder's embedding goes with its first layer
};

struct Pieces {
  std::vector<Piece> list;
  std::vector<Tied> tied;  // indices into `list`
  double layers = 0;
};

// Throw InvalidArgument.
Pieces pieces_of(const Architecture& architecture, const Setting& setting);
Pieces pieces_of(const Trace& trace, const Setting& setting);

}  // namespace smdp::memory
