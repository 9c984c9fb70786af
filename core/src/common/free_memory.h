// Memory that this process can still take.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

namespace smdp {

struct FreeMemory {
  std::size_t bytes = std::numeric_limits<std::size_t>::max();
  std::string limit;  // file that says so; empty if none does
};

// Returns how many bytes the machine, this process's cgroup and the cgroups around it still have, counting caches that
// they can drop: the least of them. root: for tests, the directory that stands for "/".
FreeMemory free_memory(const std::string& root = "");

}  // namespace smdp
