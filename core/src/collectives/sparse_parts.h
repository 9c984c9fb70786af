// A rank's input of a sum of sparse tensors, the input that it gets from the other ranks, and the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "collectives/sparse_rows.h"
#include "smdp/sparse_sum.h"

namespace smdp {

struct SparseParts {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<std::byte[], Free>;

  SparseParts(SparseForm form_, const SparseRows& rows);
  SparseParts(SparseForm form_, const void* values);

  // Both throw ShortageError.
  static Memory allocate(std::size_t bytes);
  // Pages that are never written take no memory.
  static Memory allocate_zeros(std::size_t bytes);

  std::size_t row_bytes() const { return row_elements * size_of(form.dtype); }
  std::size_t whole_bytes() const { return rows_in_all * row_bytes(); }
  std::size_t own_bytes() const { return dense == nullptr ? own_places.size() * row_bytes() : whole_bytes(); }
  bool is_dense_here() const { return dense != nullptr; }

  // Multiplies this rank's input.
  void scale_own(double factor);
  // Sums the rows of all ranks, which are in rank order.
  void set_gathered(std::vector<Row> rows, const Reduction& reduction_);

  const SparseForm form;
  bool was_given = false;  // to an operation
  std::size_t rows_in_all = 1;
  std::size_t row_elements = 1;

  // This rank's input: rows sorted by place without duplicates, or the whole tensor.
  std::vector<std::int64_t> own_places;
  const std::byte* own_values = nullptr;
  const std::byte* dense = nullptr;
  Memory packed;  // rows that had to be sorted, added up or multiplied

  // The result: rows of all ranks still to be added, with the memory of the other ranks' rows, or the whole tensor.
  bool is_dense = false;
  std::size_t count = 0;
  Reduction reduction{};
  std::vector<Row> sorted;
  Memory received;
  Memory whole;
  std::vector<std::uint8_t> used;  // one bit per row of `whole`; empty if it is dense

 private:
  explicit SparseParts(SparseForm form_);
  std::uint64_t place_of(const SparseRows& rows, std::size_t row) const;
};

}  // namespace smdp
