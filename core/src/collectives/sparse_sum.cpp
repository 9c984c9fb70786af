#include "smdp/sparse_sum.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "collectives/sparse_parts.h"
#include "common/shortage.h"
#include "smdp/error.h"

namespace smdp {
namespace {

constexpr std::size_t kLine = 64;  // bytes of a cache line

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

SparseParts::Memory checked(void* memory, const std::string& call, std::size_t bytes) {
  if (memory == nullptr) throw shortage(call, "a sum of sparse tensors", ENOMEM, bytes);
  return SparseParts::Memory(static_cast<std::byte*>(memory));
}

}  // namespace

SparseParts::SparseParts(SparseForm form_) : form(std::move(form_)) {
  for (std::size_t i = 0; i < form.shape.size(); ++i) {
    const auto extent = static_cast<std::size_t>(form.shape[i]);
    std::size_t& product = i < form.sparse_dims ? rows_in_all : row_elements;
    constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max());
    if (extent != 0 && product > kMost / extent) {
      throw InvalidArgument("[smdp] a sparse tensor of shape " + text_of(form.shape) +
                            " has more places than 2**63 - 1" +
                            ", so its rows cannot be numbered. Use fewer sparse dimensions.");
    }
    product *= extent;
  }
}

SparseParts::SparseParts(SparseForm form_, const void* values) : SparseParts(std::move(form_)) {
  dense = static_cast<const std::byte*>(values);
}

SparseParts::SparseParts(SparseForm form_, const SparseRows& rows) : SparseParts(std::move(form_)) {
  own_values = static_cast<const std::byte*>(rows.values);
  own_places.resize(rows.count);
  if (rows.is_coalesced) {
    for (std::size_t i = 0; i < rows.count; ++i) own_places[i] = static_cast<std::int64_t>(place_of(rows, i));
    return;
  }
  std::vector<Row> all(rows.count);
  for (std::size_t i = 0; i < rows.count; ++i) all[i] = {place_of(rows, i), own_values + i * row_bytes()};
  sort_rows(all, rows_in_all);
  own_places.resize(count_places(all));
  packed = allocate(own_bytes());
  sum_rows(all, row_elements, {form.dtype, ReduceOp::kSum}, own_places.data(), packed.get());
  own_values = packed.get();
}

SparseParts::Memory SparseParts::allocate(std::size_t bytes) {
  const std::size_t rounded = (bytes / kLine + 1) * kLine;
  return checked(std::aligned_alloc(kLine, rounded), "aligned_alloc", rounded);
}

SparseParts::Memory SparseParts::allocate_zeros(std::size_t bytes) {
  return checked(std::calloc(bytes + 1, 1), "calloc", bytes);
}

std::uint64_t SparseParts::place_of(const SparseRows& rows, std::size_t row) const {
  std::uint64_t place = 0;
  for (std::size_t d = 0; d < form.sparse_dims; ++d) {
    const std::int64_t index = rows.indices[d * rows.count + row];
    if (index < 0 || index >= form.shape[d]) {
      throw InvalidArgument("[smdp] a sparse tensor of shape " + text_of(form.shape) + " has index " +
                            std::to_string(index) + " in dimension " + std::to_string(d) + "; allowed: 0 to " +
                            std::to_string(form.shape[d] - 1) + ".");
    }
    place = place * static_cast<std::uint64_t>(form.shape[d]) + static_cast<std::uint64_t>(index);
  }
  return place;
}

void SparseParts::scale_own(double factor) {
  const std::byte*& own = is_dense_here() ? dense : own_values;
  if (own_bytes() == 0) return;
  Memory scaled = allocate(own_bytes());
  scale(scaled.get(), own, own_bytes() / size_of(form.dtype), form.dtype, factor);
  packed = std::move(scaled);
  own = packed.get();
}

void SparseParts::set_gathered(std::vector<Row> rows, const Reduction& reduction_) {
  sort_rows(rows, rows_in_all);
  count = count_places(rows);
  sorted = std::move(rows);
  reduction = reduction_;
}

SparseSum::SparseSum(SparseForm form, const SparseRows& rows)
    : parts_(std::make_unique<SparseParts>(std::move(form), rows)) {}
SparseSum::SparseSum(SparseForm form, const void* values)
    : parts_(std::make_unique<SparseParts>(std::move(form), values)) {}
SparseSum::~SparseSum() = default;

bool SparseSum::is_dense() const { return parts_->is_dense; }
std::size_t SparseSum::count() const { return parts_->count; }

void SparseSum::write(std::int64_t* indices, void* values) const {
  const SparseParts& parts = *parts_;
  auto* out = static_cast<std::byte*>(values);
  if (parts.is_dense) {
    copy_bytes(out, parts.whole.get(), parts.whole_bytes());
    return;
  }
  std::vector<std::int64_t> places;
  const bool is_flat = parts.form.sparse_dims == 1;
  if (!is_flat) places.resize(parts.count);
  std::int64_t* next = is_flat ? indices : places.data();
  if (!parts.whole) {
    sum_rows(parts.sorted, parts.row_elements, parts.reduction, next, out);
  } else {
    const std::size_t row_bytes = parts.row_bytes();
    for (std::size_t byte = 0; byte < parts.used.size(); ++byte) {
      for (unsigned bits = parts.used[byte]; bits != 0; bits &= bits - 1) {
        const std::size_t place = byte * 8 + static_cast<std::size_t>(std::countr_zero(bits));
        *next++ = static_cast<std::int64_t>(place);
        copy_bytes(out, parts.whole.get() + place * row_bytes, row_bytes);
        out += row_bytes;
      }
    }
  }
  if (is_flat) return;
  for (std::size_t d = parts.form.sparse_dims; d-- > 0;) {
    const std::int64_t extent = parts.form.shape[d];
    for (std::size_t i = 0; i < parts.count; ++i) {
      indices[d * parts.count + i] = places[i] % extent;
      places[i] /= extent;
    }
  }
}

}  // namespace smdp
