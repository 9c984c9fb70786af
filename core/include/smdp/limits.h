// Limits of this process, its container and the machine.
#pragma once

#include <cstddef>
#include <string>

#include "smdp/export.h"

namespace smdp {

// Raises the soft limit of open files to the hard limit, at most to 65536. Ranks call this when they meet. Programs
// that use select() lose nothing: a descriptor that is now too high for it could not have been opened before.
SMDP_API void raise_open_files_limit();

// Explains why a system call failed with this errno for lack of a resource: the limit, its value, what is needed and
// the fix. `purpose` says what the call was for, e.g. "a rank of this host"; `bytes` is the memory it asked for, or 0.
SMDP_API std::string describe_shortage(const std::string& call, const std::string& purpose, int error,
                                       std::size_t bytes = 0);

}  // namespace smdp
