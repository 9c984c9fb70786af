#include "common/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace smdp {
namespace {

// cgroup v2 "max 100000" or "150000 100000"; v1 has two files. 0 if there is no limit.
double cgroup_quota() {
  double quota = 0;
  double period = 0;
  std::string first;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> first >> period && first != "max") {
    quota = std::stod(first);
  } else if (std::ifstream v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); v1 >> quota && quota > 0) {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

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
