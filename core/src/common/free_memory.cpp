#include "common/free_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace smdp {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

std::optional<std::size_t> number_in(const char* path) {
  std::size_t value = 0;
  if (std::ifstream(path) >> value) return value;
  return std::nullopt;
}

// Returns the number behind a word at the start of a line, for example "MemAvailable:".
std::optional<std::size_t> number_after(const std::string& word, const char* path) {
  std::ifstream file(path);
  std::string found;
  while (file >> found) {
    std::size_t value = 0;
    if (found == word && file >> value) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

std::size_t left_in_container() {
  constexpr char kStatistics[] = "/sys/fs/cgroup/memory.stat";
  const auto limit = number_in("/sys/fs/cgroup/memory.max");  // "max" is not a number
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return kUnlimited;
  // Shared memory counts as files, but cannot be dropped.
  const std::size_t files = number_after("file", kStatistics).value_or(0);
  const std::size_t kept = number_after("shmem", kStatistics).value_or(0);
  const std::size_t droppable = files - std::min(files, kept);
  return *limit - std::min(*limit, *used - std::min(*used, droppable));
}

}  // namespace

std::size_t free_memory() {
  const auto kibibytes = number_after("MemAvailable:", "/proc/meminfo");
  return std::min(kibibytes ? *kibibytes * 1024 : kUnlimited, left_in_container());
}

}  // namespace smdp
