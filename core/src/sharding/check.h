// What sizes and layouts may be; errors name the field, its value and what is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "smdp/error.h"
#include "smdp/sharding.h"

namespace smdp::sharding {

inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

inline void check_range(const char* field, std::int64_t value, std::int64_t smallest, std::int64_t largest) {
  if (value >= smallest && value <= largest) return;
  throw InvalidArgument("[smdp] " + std::string(field) + " = " + std::to_string(value) +
                        " is not valid; allowed: " + std::to_string(smallest) + " to " + std::to_string(largest));
}

inline std::int64_t size_of(const Parameter& parameter) {
  return parameter.outer * parameter.length * parameter.inner * parameter.element_size;
}

// Throw InvalidArgument.
void check(const std::vector<Parameter>& parameters);
void check(const std::vector<Parameter>& parameters, const Layout& layout);

}  // namespace smdp::sharding
