// What this build and this machine are, for bug reports.
#pragma once

#include <string>
#include <vector>

#include "smdp/export.h"

namespace smdp {

// Reduction kernel in use: "avx512", "avx2", "neon" or "generic".
SMDP_API std::string active_kernel();
// All that this CPU can run, best first.
SMDP_API std::vector<std::string> kernels();
// Cores this process may use: affinity and cgroup quota counted.
SMDP_API int core_count();

}  // namespace smdp
