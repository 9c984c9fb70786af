// What layers keep from forward to backward.
#pragma once

#include <cstdint>

#include "smdp/memory.h"

namespace smdp::memory {

// Returns the bytes of an element of activations.
double element_bytes(const Setting& setting);

// Returns samples x tokens of a microbatch that such a layer processes.
double tokens(const Layers& layer, const Setting& setting);

// Returns the bytes of the scores, which layer_activations() includes and selective checkpointing recomputes.
double score_activations(const Layers& layer, const Setting& setting);

// Returns the bytes of gradients of activations while one layer runs backward: the maximum of the MLP's and of those of
// the scores, when the MLP's tensors are already freed.
double gradient_activations(const Layers& layer, const Setting& setting);

// Returns by how much sequence parallelism divides what tensor parallelism alone replicates.
double whole_divisor(const Setting& setting);

}  // namespace smdp::memory
