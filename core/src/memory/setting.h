// What the fields of a setting may be, and together.
#pragma once

#include "smdp/memory.h"

namespace smdp::memory {

// All but what depends on the model. Throws InvalidArgument.
void check(const Setting& setting);

}  // namespace smdp::memory
