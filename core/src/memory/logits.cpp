#include "memory/logits.h"

#include "memory/activations.h"

namespace smdp::memory {

LogitBytes logit_bytes(const Architecture& architecture, const Setting& setting) {
  if (architecture.outputs == 0) return {};
  const double rows = tokens(architecture.layers.back(), setting);
  const double element = element_bytes(setting);
  const double logits = rows * static_cast<double>(architecture.outputs) / static_cast<double>(setting.tensor);
  const double input = rows * static_cast<double>(architecture.hidden) * element / whole_divisor(setting);
  // The head's weight gradient is taken for computed along with its input gradient, also where backward is split.
  return {4 * logits + input, (4 + (element < 4 ? element : 0)) * logits};
}

}  // namespace smdp::memory
