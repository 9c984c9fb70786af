#include "cost/coding_cost.h"

namespace smdp::cost {

double coding(double bytes, std::size_t hosts, const Coding& rates) {
  const auto m = static_cast<double>(hosts);
  const double parts = rates.encodes_own ? 1 : (m - 1) / m;
  return bytes * (parts / rates.encode + parts / rates.decode + 1 / m / rates.encode_sum + 1 / rates.decode_sum);
}

}  // namespace smdp::cost
