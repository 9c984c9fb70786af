// Decides which way of summing sparse tensors moves less data.
#pragma once

#include <cstddef>

namespace smdp::cost {

// A tensor in sparse form: every row that a rank has is sent with its place.
struct SparseShape {
  std::size_t rows = 0;  // total rows of the tensor
  std::size_t row_bytes = 0;
};

// Returns whether gathering `sent` rows, counted over all ranks, moves at most as many bytes as an all_reduce of the
// whole tensor.
//
// Each of n ranks receives (n - 1) / n of the gathered data, or 2 (n - 1) / n of the all-reduced data, so the factor
// drops out, and all ranks decide alike from the same counts.
bool gathers_rows(std::size_t sent, const SparseShape& shape);

}  // namespace smdp::cost
