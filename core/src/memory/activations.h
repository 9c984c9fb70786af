// What layers keep from forward to backward.
#pragma once

#include <cstdint>

#include "smdp/memory.h"

namespace smdp::memory {

// Bytes of an element of activations.
double element_bytes(const Setting& setting);

// Samples x tokens of a microbatch that such a layer sees.
double tokens(const Layers& layer, const Setting& setting);

// Bytes of the scores among all that layer_activations() counts; what selective checkpointing rebuilds.
double score_activations(const Layers& layer, const Setting& setting);

// Bytes of gradients of activations while one layer runs backward: the MLP's, or those of the scores, by when the MLP's
// tensors are gone.
double gradient_activations(const Layers& layer, const Setting& setting);

// By how much sequence parallelism divides what tensor parallelism alone keeps whole.
double whole_divisor(const Setting& setting);

}  // namespace smdp::memory
