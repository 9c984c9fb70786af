// What the files of the kernel say about memory that is left.
#include "common/free_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace smdp::test {
namespace {

class FreeMemoryOf : public testing::Test {
 protected:
  ~FreeMemoryOf() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void expect(std::size_t bytes, const std::string& limit) const {
    const FreeMemory left = free_memory(root_);
    EXPECT_EQ(left.bytes, bytes);
    EXPECT_EQ(left.limit, root_ + limit);
  }

  const std::string root_ = testing::TempDir() + "free_memory_test";
};

TEST_F(FreeMemoryOf, NestedCgroups) {
  EXPECT_EQ(free_memory(root_).bytes, std::numeric_limits<std::size_t>::max());
  write("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 8 kB\n");
  expect(8192, "/proc/meminfo");
  write("/proc/self/cgroup", "0::/job/rank\n");
  write("/sys/fs/cgroup/job/rank/memory.max", "max\n");
  write("/sys/fs/cgroup/job/rank/memory.current", "100\n");
  write("/sys/fs/cgroup/job/memory.max", "3000\n");
  write("/sys/fs/cgroup/job/memory.current", "1500\n");
  write("/sys/fs/cgroup/job/memory.stat", "anon 5\nfile 600\nshmem 200\n");
  expect(1900, "/sys/fs/cgroup/job/memory.max");
  // The smallest limit need not leave the least.
  write("/sys/fs/cgroup/memory.max", "5000\n");
  write("/sys/fs/cgroup/memory.current", "4000\n");
  expect(1000, "/sys/fs/cgroup/memory.max");
}

TEST_F(FreeMemoryOf, FirstVersion) {
  write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n");
  write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "700\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "700\n");
  write("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 50\n");
  expect(350, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

}  // namespace
}  // namespace smdp::test
