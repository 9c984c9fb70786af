// What limits the cores of a process, read from files like those of /proc and /sys.
#include "common/cores.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <string>

namespace smdp {
namespace {

namespace fs = std::filesystem;

class CgroupQuota : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(system_); }

  double with(const std::map<std::string, std::string>& files) {
    fs::remove_all(system_);
    for (const auto& [name, text] : files) {
      fs::create_directories((system_ / name).parent_path());
      std::ofstream(system_ / name) << text << "\n";
    }
    return cgroup_quota(system_);
  }

 private:
  const fs::path system_ = fs::temp_directory_path() / ("smdp-cgroup-" + std::to_string(::getpid()));
};

TEST_F(CgroupQuota, IsTheTightestOfVersion2) {
  EXPECT_EQ(with({{"proc/self/cgroup", "0::/a/b"}, {"sys/fs/cgroup/a/b/cpu.max", "150000 100000"}}), 1.5);
  EXPECT_EQ(with({{"proc/self/cgroup", "0::/a/b"},
                  {"sys/fs/cgroup/a/b/cpu.max", "max 100000"},
                  {"sys/fs/cgroup/a/cpu.max", "400000 100000"},
                  {"sys/fs/cgroup/cpu.max", "max 100000"}}),
            4);
  EXPECT_EQ(with({{"proc/self/cgroup", "0::/a"},
                  {"sys/fs/cgroup/a/cpu.max", "400000 100000"},
                  {"sys/fs/cgroup/cpu.max", "200000 100000"}}),
            2);
  // In a container without a namespace of its own the path names nothing.
  EXPECT_EQ(with({{"proc/self/cgroup", "0::/kubepods/x"}, {"sys/fs/cgroup/cpu.max", "300000 100000"}}), 3);
}

TEST_F(CgroupQuota, IsTheTightestOfVersion1) {
  EXPECT_EQ(with({{"proc/self/cgroup", "4:cpu,cpuacct:/j\n3:memory:/x"},
                  {"sys/fs/cgroup/cpu/j/cpu.cfs_quota_us", "200000"},
                  {"sys/fs/cgroup/cpu/j/cpu.cfs_period_us", "100000"}}),
            2);
  EXPECT_EQ(with({{"proc/self/cgroup", "4:cpu,cpuacct:/"}, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"}}), 0);
}

TEST_F(CgroupQuota, IsNothingWhereNothingLimits) {
  EXPECT_EQ(with({}), 0);
  EXPECT_EQ(with({{"proc/self/cgroup", "0::/"}, {"sys/fs/cgroup/cpu.max", "max 100000"}}), 0);
  EXPECT_EQ(with({{"proc/self/cgroup", "0::/"}, {"sys/fs/cgroup/cpu.max", "nonsense"}}), 0);
  EXPECT_EQ(with({{"proc/self/cgroup", "not a line"}}), 0);
}

TEST(Cores, AreTheUnionOfMasks) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_EQ(core_count_of({"1"}), 1);
  EXPECT_EQ(core_count_of({"", ""}), 1);
  EXPECT_LE(core_count_of({"1", "01"}), 2);
}

}  // namespace
}  // namespace smdp
