// Sums of tensors whose rows are mostly zero, such as the gradients of embeddings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "smdp/dtype.h"
#include "smdp/export.h"

namespace smdp {

struct SparseParts;

// The shape and dtype of the whole tensor. Its first `sparse_dims` extents count rows; the others are the shape of a
// row.
struct SparseForm {
  std::vector<std::int64_t> shape;
  std::size_t sparse_dims = 1;
  DType dtype = DType::kFloat32;
};

// The rows of one rank, as in a torch COO tensor. Row i is stored at values + i rows, and its index along dimension d
// is indices[d * count + i].
struct SparseRows {
  const std::int64_t* indices = nullptr;
  const void* values = nullptr;
  std::size_t count = 0;
  bool is_coalesced = false;  // sorted by index, without duplicates
};

// This rank's input of one Group::all_reduce_sparse(), and then the result. Rows with the same index are added up:
// first those of a rank, in their order, then those of the ranks, in rank order. The result has each index once, in
// order. Create it with std::make_shared.
class SMDP_API SparseSum : public std::enable_shared_from_this<SparseSum> {
 public:
  // Sorts and adds up this rank's rows. `values` must not change until the last write(). Throws InvalidArgument for an
  // index outside the shape.
  SparseSum(SparseForm form, const SparseRows& rows);
  // Takes the whole tensor from this rank. The result is then dense on every rank.
  SparseSum(SparseForm form, const void* values);
  SparseSum(const SparseSum&) = delete;
  SparseSum& operator=(const SparseSum&) = delete;
  ~SparseSum();

  // The three functions below may be called once the operation has ended. Returns whether any rank passed the whole
  // tensor.
  bool is_dense() const;
  // Returns the number of rows of the result.
  std::size_t count() const;
  // Writes the result as in SparseRows; for a dense result only the values.
  void write(std::int64_t* indices, void* values) const;

  // For the group.
  SparseParts& parts() const { return *parts_; }

 private:
  std::unique_ptr<SparseParts> parts_;
};

}  // namespace smdp
