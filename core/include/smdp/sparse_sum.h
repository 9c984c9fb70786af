// Sums of tensors of which most rows are zero, such as the gradients of embeddings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "smdp/dtype.h"
#include "smdp/export.h"

namespace smdp {

struct SparseParts;

// The whole tensor. Its first `sparse_dims` extents count its rows, the others are those of a row.
struct SparseForm {
  std::vector<std::int64_t> shape;
  std::size_t sparse_dims = 1;
  DType dtype = DType::kFloat32;
};

// The rows that one rank has, as torch keeps a COO tensor. Row i lies at values + i rows, and its index along dimension
// d is indices[d * count + i].
struct SparseRows {
  const std::int64_t* indices = nullptr;
  const void* values = nullptr;
  std::size_t count = 0;
  bool is_coalesced = false;  // in the order of their places, no place twice
};

// What this rank gives to one Group::all_reduce_sparse(), and then the sum. Rows of one place are added up: first those
// of a rank, in their order, then those of the ranks, in the order of the ranks. The sum has each place once, in order.
class SMDP_API SparseSum {
 public:
  // Sorts and adds up this rank's rows. `values` must stay as they are until the last write(). Throws InvalidArgument
  // for an index outside the shape.
  SparseSum(SparseForm form, const SparseRows& rows);
  // This rank has all of it. Then the sum is dense on every rank.
  SparseSum(SparseForm form, const void* values);
  SparseSum(const SparseSum&) = delete;
  SparseSum& operator=(const SparseSum&) = delete;
  ~SparseSum();

  // The three below may be called once the operation has ended.
  // Returns whether some rank gave the whole tensor.
  bool is_dense() const;
  // Rows of the sum.
  std::size_t count() const;
  // Writes the sum as SparseRows has it; of a dense one the values alone.
  void write(std::int64_t* indices, void* values) const;

  // For the group.
  SparseParts& parts() const { return *parts_; }

 private:
  std::unique_ptr<SparseParts> parts_;
};

}  // namespace smdp
