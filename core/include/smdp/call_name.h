// The name of a thread's calls, for front ends in which nothing between the program and the group carries one.
#pragma once

#include <string>

#include "smdp/export.h"

namespace smdp {

// Collectives that this thread calls from now on have this name, unless their Call has one. Empty: none.
SMDP_API void set_call_name(std::string name);
SMDP_API const std::string& call_name();

}  // namespace smdp
