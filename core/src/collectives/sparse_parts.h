// What a rank gives to a sum of sparse tensors, what it gets of the others, and what comes of it.
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
  // Pages that nobody writes cost nothing.
  static Memory allocate_zeros(std::size_t bytes);

  std::size_t row_bytes() const { return row_elements * size_of(form.dtype); }
  std::size_t whole_bytes() const { return rows_in_all * row_bytes(); }
  std::size_t own_bytes() const { return dense == nullptr ? own_places.size() * row_bytes() : whole_bytes(); }
  bool is_dense_here() const { return dense != nullptr; }

  // Multiplies what this rank gives.
  void scale_own(double factor);
  // The rows that all ranks gave, in the order of the ranks, become the sum.
  void set_gathered(std::vector<Row> rows, const Reduction& reduction_);

  const SparseForm form;
  bool was_given = false;  // to an operation
  std::size_t rows_in_all = 1;
  std::size_t row_elements = 1;

  // This rank's: sorted rows, each place once, or all of it.
  std::vector<std::int64_t> own_places;
  const std::byte* own_values = nullptr;
  const std::byte* dense = nullptr;
  Memory packed;  // where they had to be sorted, added up or multiplied

  // The sum: rows of all ranks still to be added, with the memory that the others' came to, or all of it.
  bool is_dense = false;
  std::size_t count = 0;
  Reduction reduction{};
  std::vector<Row> sorted;
  Memory received;
  Memory whole;
  std::vector<std::uint8_t> used;  // a bit for each row of `whole`; empty if it is dense

 private:
  explicit SparseParts(SparseForm form_);
  std::uint64_t place_of(const SparseRows& rows, std::size_t row) const;
};

}  // namespace smdp
