#pragma once

#include <cstddef>

#include "smdp/dtype.h"

namespace smdp {

// Returns whether none of `count` floats, real or complex, is infinity or NaN; true for other dtypes.
bool are_finite(const std::byte* values, std::size_t count, DType dtype);

}  // namespace smdp
