// Rows of a sparse tensor in any memory: sorted by their place in the tensor, and added up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/reduce.h"

namespace smdp {

struct Row {
  std::uint64_t place;
  const std::byte* values;
};

// Sorts by place; rows with the same place keep their order. places: the number of places.
void sort_rows(std::vector<Row>& rows, std::uint64_t places);

// Returns the number of different places of sorted rows.
std::size_t count_places(const std::vector<Row>& sorted);

// Writes each place of sorted rows once, with the reduction of its rows in their order.
void sum_rows(const std::vector<Row>& sorted, std::size_t row_elements, const Reduction& reduction,
              std::int64_t* places, std::byte* sums);

}  // namespace smdp
