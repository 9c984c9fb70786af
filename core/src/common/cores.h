// The CPU cores that this process may actually use.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace smdp {

// Returns the cores that the cgroup of this process, or one of its parents, allows; 0 if none sets a limit. system:
// root of proc and sys, for tests.
double cgroup_quota(const std::filesystem::path& system = "/");

// Returns the usable cores, limited by affinity mask and cgroup quota; at least 1.
int usable_cores();

// Returns this process's affinity mask as text, for core_count_of().
std::string core_mask();

// Returns the cores that processes with these masks may use together, because a launcher may bind each to its own core.
// Limited by the cgroup quota of this process; at least 1.
int core_count_of(const std::vector<std::string>& masks);

}  // namespace smdp
