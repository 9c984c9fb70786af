#include "fusion/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace smdp {
namespace {

// Floats are compared as integers without their sign, which makes infinity and NaN the largest.
template <class Bits>
bool are_below(Bits infinity, const std::byte* values, std::size_t count) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() >> 1;
  Bits largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, values + i * sizeof bits, sizeof bits);
    largest = std::max<Bits>(largest, bits & kMagnitude);
  }
  return largest < infinity;
}

}  // namespace

bool are_finite(const std::byte* values, std::size_t count, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return are_below<std::uint32_t>(0x7f800000U, values, count);
    case DType::kComplex64:
      return are_below<std::uint32_t>(0x7f800000U, values, 2 * count);
    case DType::kFloat64:
      return are_below<std::uint64_t>(0x7ff0000000000000U, values, count);
    case DType::kComplex128:
      return are_below<std::uint64_t>(0x7ff0000000000000U, values, 2 * count);
    case DType::kBfloat16:
      return are_below<std::uint16_t>(0x7f80U, values, count);
    case DType::kFloat16:
      return are_below<std::uint16_t>(0x7c00U, values, count);
    case DType::kComplex32:
      return are_below<std::uint16_t>(0x7c00U, values, 2 * count);
    default:
      return true;
  }
}

}  // namespace smdp
