// The name of a thread's calls, for front ends that cannot pass a name from the program to the group.
#pragma once

#include <string>

#include "smdp/export.h"

namespace smdp {

// Sets the name of the collectives that this thread calls from now on, unless their Call has its own. Empty: no name.
SMDP_API void set_call_name(std::string name);
SMDP_API const std::string& call_name();

}  // namespace smdp
