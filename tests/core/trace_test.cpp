// A trace has a limit, and says when it was reached.
#include "observability/trace.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ranks.h"
#include "smdp/store.h"

namespace smdp::test {
namespace {

std::vector<std::string> lines_of(const std::filesystem::path& folder) {
  std::vector<std::string> lines;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) lines.push_back(line);
  }
  return lines;
}

TEST(Trace, AFullFileEndsWithAnEventThatSaysSo) {
  const std::filesystem::path folder = testing::TempDir() + "smdp_full_trace";
  std::filesystem::remove_all(folder);
  trace::open(folder.string(), 3, 4, "here");
  EXPECT_TRUE(trace::is_on());
  trace::set_limit(20'000);
  TimePoint now{};
  for (int i = 0; i < 1000; ++i, now += std::chrono::microseconds(2)) {
    trace::span("track", "category", "event " + std::to_string(i), now, now + std::chrono::microseconds(1));
  }
  EXPECT_FALSE(trace::is_on());
  trace::finish();
  const std::vector<std::string> lines = lines_of(folder);
  std::size_t bytes = 0;
  for (const std::string& line : lines) bytes += line.size() + 1;
  EXPECT_GE(bytes, 20'000U);
  EXPECT_LT(bytes, 20'500U);
  ASSERT_GT(lines.size(), 100U);
  EXPECT_NE(lines[lines.size() - 2].find("\"event "), std::string::npos) << lines[lines.size() - 2];
  EXPECT_NE(lines.back().find(R"("name":"trace is full")"), std::string::npos) << lines.back();
  EXPECT_NE(lines.back().find(R"("args":{"limit_bytes":20000}},)"), std::string::npos) << lines.back();
  std::filesystem::remove_all(folder);
}

// In a child, as a process has one trace.
TEST(Trace, OneThatEndsInOrderSaysSo) {
  const std::filesystem::path folder = testing::TempDir() + "smdp_whole_trace";
  std::filesystem::remove_all(folder);
  const int child = ::fork();
  if (child == 0) {
    trace::open(folder.string(), 0, 1, "here");
    const TimePoint now{};
    trace::span("track", "category", "early", now, now);
    trace::finish();
    trace::finish();
    trace::span("track", "category", "late", now, now);
    trace::finish();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const std::vector<std::string> lines = lines_of(folder);
  ASSERT_GE(lines.size(), 4U);
  const std::vector<std::string> last(lines.end() - 4, lines.end());
  EXPECT_NE(last[0].find("early"), std::string::npos) << last[0];
  EXPECT_NE(last[1].find(R"("name":"trace ends")"), std::string::npos) << last[1];
  EXPECT_NE(last[2].find("late"), std::string::npos) << last[2];
  EXPECT_NE(last[3].find(R"("name":"trace ends")"), std::string::npos) << last[3];
  std::filesystem::remove_all(folder);
}

// Alone of its kind in this process, which has one trace.
TEST(Trace, OfAPartOfTheWorldHasTheNumbersOfTheWorld) {
  const std::filesystem::path folder = testing::TempDir() + "smdp_part_trace";
  std::filesystem::remove_all(folder);
  const int child = ::fork();  // which has none of its parent's
  if (child == 0) {
    GroupOptions options = quick_options();
    options.trace = folder.string();
    options.world_rank = 5;
    options.world_size = 8;
    {
      Group group(make_memory_store(), 0, 1, options);
      group.barrier();
    }
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const std::vector<std::string> lines = lines_of(folder);
  ASSERT_GT(lines.size(), 5U);
  EXPECT_NE(lines[3].find(R"("args":{"rank":5,"size":8,)"), std::string::npos) << lines[3];
  EXPECT_NE(lines[lines.size() - 2].find("barrier"), std::string::npos) << lines[lines.size() - 2];
  EXPECT_NE(lines.back().find("trace ends"), std::string::npos) << lines.back();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace smdp::test
