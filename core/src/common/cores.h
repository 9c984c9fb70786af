// CPU cores this process may really use.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace smdp {

// Cores that the cgroup of this process, or one above it, allows it; 0 if none sets a limit. system: where proc and sys
// are, for tests.
double cgroup_quota(const std::filesystem::path& system = "/");

// Affinity mask and cgroup quota counted; at least 1.
int usable_cores();

// This process's affinity mask as text, for core_count_of().
std::string core_mask();

// Cores that processes with these masks may use together: a launcher may bind each to one of its own. The cgroup
// quota of this process counts, too; at least 1.
int core_count_of(const std::vector<std::string>& masks);

}  // namespace smdp
