// Limits of this process, of its container and of the machine.
#pragma once

#include <cstddef>
#include <string>

#include "smdp/export.h"

namespace smdp {

// Raises the soft limit of open files to the hard one, as far as 65536. Ranks do so when they meet. A program that uses
// select() loses nothing: where a descriptor is now too high for it, it would have failed to open it before.
SMDP_API void raise_open_files_limit();

// Why a system call fails with this errno for want of something: the limit, its value, what is needed and the cure.
// purpose: what the call was for, e.g. "a rank of this host". bytes: of memory that it asked for; 0: none.
SMDP_API std::string describe_shortage(const std::string& call, const std::string& purpose, int error,
                                       std::size_t bytes = 0);

}  // namespace smdp
