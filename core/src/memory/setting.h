// Valid values of a setting's fields, and of their combinations.
#pragma once

#include "smdp/memory.h"

namespace smdp::memory {

// Checks everything that does not depend on the model. Throws InvalidArgument.
void check(const Setting& setting);

}  // namespace smdp::memory
