// Rows of a sparse tensor, wherever they lie: sorted by their place in it, and added up.
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

// By place; rows of one place keep their order. places: how many there are.
void sort_rows(std::vector<Row>& rows, std::uint64_t places);

// Of sorted rows.
std::size_t count_places(const std::vector<Row>& sorted);

// Writes the places of sorted rows, each once, and for each the reduction of its rows, in their order.
void sum_rows(const std::vector<Row>& sorted, std::size_t row_elements, const Reduction& reduction,
              std::int64_t* places, std::byte* sums);

}  // namespace smdp
