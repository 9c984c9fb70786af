#include "cost/coding_cost.h"

namespace smdp::cost {

double coding(double bytes, std::size_t hosts, const Coding& rates) {
  const auto m = static_cast<double>(hosts);
  return bytes * (1 / rates.encode + (m - 1) / m / rates.decode + 1 / m / rates.encode_sum + 1 / rates.decode_sum);
}

}  // namespace smdp::cost
