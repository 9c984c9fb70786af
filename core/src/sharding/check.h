// Checks of sizes and layouts; errors name the field, its value and the valid values.
#pragma once

#include <cstdint>
#include <vector>

#include "common/argument.h"
#include "smdp/sharding.h"

namespace smdp::sharding {

inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

inline std::int64_t size_of(const Parameter& parameter) {
  return parameter.outer * parameter.length * parameter.inner * parameter.element_size;
}

// Throw InvalidArgument.
void check(const std::vector<Parameter>& parameters);
void check(const std::vector<Parameter>& parameters, const Layout& layout);

}  // namespace smdp::sharding
