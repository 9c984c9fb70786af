// Logits of a language model: the largest single tensor of its last stage.
#pragma once

#include "smdp/memory.h"

namespace smdp::memory {

struct LogitBytes {
  double kept = 0;   // from forward to backward: in fp32, and the matrix' input
  double extra = 0;  // while the loss runs backward: the gradient in fp32, and in 16 bits the logits themselves
};

LogitBytes logit_bytes(const Architecture& architecture, const Setting& setting);

}  // namespace smdp::memory
