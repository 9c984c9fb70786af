// What a field may be; the error names it, its value and what is allowed.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "smdp/error.h"

namespace smdp::memory {

// Far above every model and cluster; products of three stay far below the largest double.
inline constexpr std::int64_t kLargest = std::int64_t{1} << 40;

[[noreturn]] inline void refuse(const std::string& field, const std::string& value, const std::string& allowed) {
  throw InvalidArgument("[smdp] " + field + " = " + value + " is not valid; allowed: " + allowed);
}

inline void check_count(const char* field, std::int64_t value, std::int64_t smallest, std::int64_t largest = kLargest) {
  if (value < smallest || value > largest) {
    refuse(field, std::to_string(value),
           "an integer from " + std::to_string(smallest) + " to " + std::to_string(largest));
  }
}

inline void check_amount(const std::string& field, double value, double largest = 1e18) {
  if (!(value >= 0 && value <= largest)) refuse(field, std::to_string(value), "a number from 0 to 1e18");
}

}  // namespace smdp::memory
