// The logits of a language model: the largest single tensor of its last stage.
#pragma once

#include "smdp/memory.h"

namespace smdp::memory {

struct LogitBytes {
  double kept = 0;   // from forward to backward: log-probabilities in fp32, and the matrix' input
  double extra = 0;  // while the loss runs backward: the gradients of both, in fp32
};

LogitBytes logit_bytes(const Architecture& architecture, const Setting& setting);

}  // namespace smdp::memory
