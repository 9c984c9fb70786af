#include "common/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

namespace smdp {
namespace {

namespace fs = std::filesystem;

// Returns the quota of one cgroup: "max 100000" or "150000 100000" in version 2, two files in version 1. 0: no limit.
double quota_of(const fs::path& directory) {
  double quota = 0;
  double period = 0;
  std::string first;
  if (std::ifstream file(directory / "cpu.max"); file >> first >> period && first != "max") {
    quota = std::strtod(first.c_str(), nullptr);
  } else if (std::ifstream v1(directory / "cpu.cfs_quota_us"); v1 >> quota && quota > 0) {
    std::ifstream(directory / "cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

// Returns whether a line's second field, e.g. "cpu,cpuacct", names the controller; it is empty in version 2.
bool has_cpu(const std::string& controllers) {
  return controllers.empty() || ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

double cgroup_quota(const fs::path& system) {
  double least = 0;
  std::ifstream lines(system / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!has_cpu(controllers)) continue;
    const fs::path root = system / (controllers.empty() ? "sys/fs/cgroup" : "sys/fs/cgroup/cpu");
    // Each of the parents may have a lower limit. A container may show its own cgroup as the root.
    for (fs::path inner = fs::path(line.substr(second + 1)).relative_path();; inner = inner.parent_path()) {
      const double quota = quota_of(root / inner);
      if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
      if (inner.empty()) break;
    }
  }
  return least;
}

int usable_cores() { return core_count_of({core_mask()}); }

std::string core_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  std::string mask;
  for (int core = 0; core < CPU_SETSIZE; ++core) mask += CPU_ISSET(core, &set) ? '1' : '0';
  mask.erase(mask.find_last_not_of('0') + 1);
  return mask;
}

int core_count_of(const std::vector<std::string>& masks) {
  std::string all;
  for (const std::string& mask : masks) {
    if (mask.size() > all.size()) all.resize(mask.size(), '0');
    for (std::size_t core = 0; core < mask.size(); ++core) {
      if (mask[core] == '1') all[core] = '1';
    }
  }
  auto count = static_cast<int>(std::count(all.begin(), all.end(), '1'));
  const double quota = cgroup_quota();
  if (quota > 0) count = std::min(count, static_cast<int>(quota + 0.5));
  return std::max(1, count);
}

}  // namespace smdp
