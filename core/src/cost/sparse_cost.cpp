#include "cost/sparse_cost.h"

#include <cstdint>

namespace smdp::cost {

bool gathers_rows(std::size_t sent, const SparseShape& shape) {
  const auto row = static_cast<double>(shape.row_bytes);
  const double gathered = static_cast<double>(sent) * (row + sizeof(std::int64_t));
  const double whole = static_cast<double>(shape.rows) * (row + 1.0 / 8);  // plus a bit that says whether the row is
                                                                           // there
  return gathered <= 2 * whole;
}

}  // namespace smdp::cost
