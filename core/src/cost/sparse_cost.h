// Which way a sum of sparse tensors moves less data.
#pragma once

#include <cstddef>

namespace smdp::cost {

// A tensor as it is summed sparsely: every row that a rank has travels with its place.
struct SparseShape {
  std::size_t rows = 0;  // that the tensor has in all
  std::size_t row_bytes = 0;
};

// Whether gathering `sent` rows, counted over all ranks, moves no more bytes than an all_reduce of the whole tensor.
//
// Each of n ranks receives (n - 1) / n of what is gathered, and 2 (n - 1) / n of what is all-reduced, so the factor
// drops out, and all ranks come to the same answer from the same counts.
bool gathers_rows(std::size_t sent, const SparseShape& shape);

}  // namespace smdp::cost
