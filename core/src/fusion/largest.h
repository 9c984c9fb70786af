// Selects the largest of many values exactly, in little more than one pass over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdp {

// Returns the places of the k largest values by magnitude, ascending; among equal ones the first. Zeros are left out,
// so there may be fewer. A NaN is larger than all numbers.
std::vector<std::uint32_t> largest(const float* values, std::size_t count, std::size_t k);

}  // namespace smdp
