// Memory that this process can still take.
#pragma once

#include <cstddef>

namespace smdp {

// Returns how many bytes the container and the machine still have, counting caches that they can drop. The largest
// number if neither says so.
std::size_t free_memory();

}  // namespace smdp
