// Facts about this build and this machine, for bug reports.
#pragma once

#include <string>
#include <vector>

#include "smdp/export.h"

namespace smdp {

// Returns the reduction kernel in use: "avx512", "avx2", "neon" or "generic".
SMDP_API std::string active_kernel();
// Returns all kernels that this CPU can run, fastest first.
SMDP_API std::vector<std::string> kernels();
// Returns the number of cores this process may use, limited by affinity and the cgroup's quota.
SMDP_API int core_count();

}  // namespace smdp
