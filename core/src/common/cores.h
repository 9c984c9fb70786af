// CPU cores this process may really use.
#pragma once

namespace smdp {

// Affinity mask and cgroup quota counted; at least 1.
int usable_cores();

}  // namespace smdp
