#include "common/free_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace smdp {
namespace {

std::optional<std::size_t> number_in(const std::string& path) {
  std::size_t value = 0;
  if (std::ifstream(path) >> value) return value;
  return std::nullopt;
}

// Returns the number behind a word at the start of a line, for example "MemAvailable:".
std::optional<std::size_t> number_after(const std::string& word, const std::string& path) {
  std::ifstream file(path);
  std::string found;
  while (file >> found) {
    std::size_t value = 0;
    if (found == word && file >> value) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// Version 1 of cgroups has a hierarchy for each controller, version 2 one for all.
bool counts_memory(const std::string& controllers) {
  return controllers.empty() || ("," + controllers + ",").find(",memory,") != std::string::npos;
}

// Returns the directories of this process's cgroups and of their parents.
std::vector<std::string> cgroups(const std::string& root) {
  std::vector<std::string> directories;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // for example "4:memory:/docker/1" or "0::/job"
    std::istringstream fields(line);
    std::string number;
    std::string controllers;
    std::string path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (!counts_memory(controllers)) continue;
    const std::string top = root + "/sys/fs/cgroup" + (controllers.empty() ? "" : "/memory");
    while (path.size() > 1) {
      directories.push_back(top + path);
      path.erase(path.rfind('/'));
    }
    directories.push_back(top);
  }
  return directories;
}

// What a cgroup can drop. Its shared memory counts as files, but cannot be dropped.
std::size_t droppable(const std::string& directory) {
  const std::string statistics = directory + "/memory.stat";
  if (const auto inactive = number_after("total_inactive_file", statistics)) return *inactive;  // version 1
  const std::size_t files = number_after("file", statistics).value_or(0);
  return files - std::min(files, number_after("shmem", statistics).value_or(0));
}

FreeMemory left_in(const std::string& directory) {
  constexpr std::array<std::pair<const char*, const char*>, 2> kVersions{
      {{"/memory.max", "/memory.current"}, {"/memory.limit_in_bytes", "/memory.usage_in_bytes"}}};
  for (const auto& [most, now] : kVersions) {
    const auto limit = number_in(directory + most);  // "max" is not a number
    const auto used = number_in(directory + now);
    if (!limit || !used) continue;
    const std::size_t kept = *used - std::min(*used, droppable(directory));
    return {*limit - std::min(*limit, kept), directory + most};
  }
  return {};
}

}  // namespace

FreeMemory free_memory(const std::string& root) {
  FreeMemory least;
  const std::string machine = root + "/proc/meminfo";
  if (const auto kibibytes = number_after("MemAvailable:", machine)) least = {*kibibytes * 1024, machine};
  for (const std::string& directory : cgroups(root)) {
    FreeMemory left = left_in(directory);
    if (left.bytes < least.bytes) least = std::move(left);
  }
  return least;
}

}  // namespace smdp
