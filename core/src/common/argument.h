// What an argument may be; the error names it, its value and what is allowed.
#pragma once

#include <cstdint>
#include <string>

#include "smdp/error.h"

namespace smdp {

[[noreturn]] inline void refuse(const std::string& name, const std::string& value, const std::string& allowed) {
  throw InvalidArgument("[smdp] " + name + " = " + value + " is not valid; allowed: " + allowed);
}

// Far above every model and cluster; products of three, as double, stay far below the largest.
inline constexpr std::int64_t kLargestCount = std::int64_t{1} << 40;

inline void check_count(const char* name, std::int64_t value, std::int64_t smallest,
                        std::int64_t largest = kLargestCount) {
  if (value >= smallest && value <= largest) return;
  refuse(name, std::to_string(value), "an integer from " + std::to_string(smallest) + " to " + std::to_string(largest));
}

// Neither NaN nor infinite.
inline void check_amount(const std::string& name, double value, double largest = 1e18) {
  if (value >= 0 && value <= largest) return;
  refuse(name, std::to_string(value), "a number from 0 to " + std::to_string(static_cast<std::int64_t>(largest)));
}

}  // namespace smdp
