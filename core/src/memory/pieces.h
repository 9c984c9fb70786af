// The pieces that stages are made of, as one tensor-parallel rank holds them.
#pragma once

#include <cstddef>
#include <vector>

#include "smdp/memory.h"

namespace smdp::memory {

struct Piece {
  double parameters = 0;    // elements
  double activations = 0;   // bytes kept of a microbatch if nothing is rebuilt; of layers and of units of a trace
  double rebuilt = 0;       // of these, what selective checkpointing drops
  double gradients = 0;     // bytes of gradients of activations while it runs backward
  double input = 0;         // bytes: what a checkpoint keeps, and what a stage that begins here receives
  double embedding = 0;     // bytes kept of a microbatch, whatever the checkpointing
  double logits = 0;        // bytes kept of a microbatch
  double logits_extra = 0;  // bytes while it runs backward
  bool is_layer = false;    // counts in stage_sizes and may be rebuilt; the first and the last stage get the embedding
                            // and the head, a decoder's embedding goes where its first layer goes
};

struct Pieces {
  std::vector<Piece> list;
  std::vector<Tied> tied;  // of `list`
  double layers = 0;
};

// Throw InvalidArgument.
Pieces pieces_of(const Architecture& architecture, const Setting& setting);
Pieces pieces_of(const Trace& trace, const Setting& setting);

}  // namespace smdp::memory
