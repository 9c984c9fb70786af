// Floats as integers: in this form NaN is above infinity, which is above all numbers.
#pragma once

#include <bit>
#include <cstdint>

namespace smdp {

constexpr std::uint32_t kInfinityBits = 0x7f800000U;

constexpr std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU; }

}  // namespace smdp
