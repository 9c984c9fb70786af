#include "memory/logits.h"

#include "memory/activations.h"

namespace smdp::memory {

LogitBytes logit_bytes(const Architecture& architecture, const Setting& setting) {
  if (architecture.outputs == 0) return {};
  const double rows = tokens(architecture.layers.back(), setting);
  const double logits = rows * static_cast<double>(architecture.outputs) / static_cast<double>(setting.tensor);
  const double input =
      rows * static_cast<double>(architecture.hidden) * element_bytes(setting) / whole_divisor(setting);
  // 12 bytes each, as observed for torch's cross_entropy in fp32 and bf16. The logits themselves are freed by then
  // unless the program holds them. The head's weight gradient is assumed to be computed together with its input
  // gradient, even if backward is split.
  return {4 * logits + input, 8 * logits};
}

}  // namespace smdp::memory
