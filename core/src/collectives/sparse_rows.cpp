#include "collectives/sparse_rows.h"

#include <algorithm>
#include <array>

namespace smdp {
namespace {

// Fewer rows are sorted faster by comparison.
constexpr std::size_t kFewRows = 256;
constexpr unsigned kDigitBits = 11;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;

bool is_before(const Row& one, const Row& other) { return one.place < other.place; }

// One pass of a radix sort; it keeps the order of equal digits.
void sort_by_digit(const std::vector<Row>& rows, unsigned shift, std::vector<Row>& sorted) {
  const auto digit = [shift](const Row& row) { return (row.place >> shift) % kDigits; };
  std::array<std::size_t, kDigits> next{};
  for (const Row& row : rows) ++next[digit(row)];
  std::size_t begin = 0;
  for (std::size_t& count : next) {
    const std::size_t end = begin + count;
    count = begin;
    begin = end;
  }
  for (const Row& row : rows) sorted[next[digit(row)]++] = row;
}

}  // namespace

void sort_rows(std::vector<Row>& rows, std::uint64_t places) {
  if (std::is_sorted(rows.begin(), rows.end(), is_before)) return;
  if (rows.size() < kFewRows) {
    std::stable_sort(rows.begin(), rows.end(), is_before);
    return;
  }
  std::vector<Row> sorted(rows.size());
  for (unsigned shift = 0; shift < 64 && (places - 1) >> shift != 0; shift += kDigitBits) {
    sort_by_digit(rows, shift, sorted);
    rows.swap(sorted);
  }
}

std::size_t count_places(const std::vector<Row>& sorted) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i == 0 || sorted[i].place != sorted[i - 1].place) ++count;
  }
  return count;
}

void sum_rows(const std::vector<Row>& sorted, std::size_t row_elements, const Reduction& reduction,
              std::int64_t* places, std::byte* sums) {
  const std::size_t row_bytes = row_elements * size_of(reduction.dtype);
  std::vector<const void*> sources;
  for (auto row = sorted.begin(); row != sorted.end();) {
    const std::uint64_t place = row->place;
    sources.clear();
    for (; row != sorted.end() && row->place == place; ++row) sources.push_back(row->values);
    reduce(sums, sources.data(), sources.size(), row_elements, reduction);
    *places++ = static_cast<std::int64_t>(place);
    sums += row_bytes;
  }
}

}  // namespace smdp
