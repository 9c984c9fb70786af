// Ranks that disagree, on one host and on several: an error on every rank, soon, naming both sides.
#include <gtest/gtest.h>

#include <string>

#include "ranks.h"
#include "smdp/error.h"

namespace smdp::test {
namespace {

using Body = std::function<void(Group&)>;

// Every rank's body ends in a MismatchError within 5 s that contains the texts.
void expect_mismatch(const Layout& layout, const Body& body, const std::vector<std::string>& texts) {
  run(layout, [&](Group& group) {
    const auto start = std::chrono::steady_clock::now();
    try {
      body(group);
      group.barrier();  // where a rank could finish its part alone, the next operation finds it
      ADD_FAILURE() << "rank " << group.rank() << " saw no mismatch, layout " << describe(layout);
    } catch (const MismatchError& error) {
      for (const std::string& text : texts) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << text << " not in: " << error.what();
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << describe(layout);
    // run() ends with a barrier, which must repeat the error.
    EXPECT_THROW(group.barrier(), MismatchError);
    group.shutdown();
  });
}

class Mismatch : public testing::TestWithParam<Layout> {
 protected:
  static void expect(const Body& body, const std::vector<std::string>& texts) {
    try {
      expect_mismatch(GetParam(), body, texts);
    } catch (const Error&) {
      // run()'s own barrier, on a group that has failed as it should
    }
  }
};

TEST_P(Mismatch, ShapeOfAllReduce) {
  expect(
      [](Group& group) {
        std::vector<float> data(group.rank() == 0 ? 512 : 256);
        group.all_reduce(data.data(), data.data(), std::vector<std::int64_t>{static_cast<std::int64_t>(data.size())},
                         DType::kFloat32, ReduceOp::kSum);
      },
      {"rank 0", "[512]", "[256]"});
}

TEST_P(Mismatch, RootOfReduce) {
  expect(
      [](Group& group) {
        std::vector<float> data(8);
        // Both wait for each other's part: nobody's data tells them apart.
        group.reduce(data.data(), data.data(), std::vector<std::int64_t>{8}, DType::kFloat32, ReduceOp::kSum,
                     group.rank() % 2);
      },
      {"to rank 0", "to rank 1"});
}

TEST_P(Mismatch, Operation) {
  expect(
      [](Group& group) {
        std::vector<float> data(8);
        const std::vector<std::int64_t> shape{8};
        if (group.rank() == 0) {
          group.broadcast(data.data(), shape, DType::kFloat32, 0);
        } else {
          group.all_reduce(data.data(), data.data(), shape, DType::kFloat32, ReduceOp::kSum);
        }
      },
      {"broadcast", "all_reduce"});
}

INSTANTIATE_TEST_SUITE_P(Layouts, Mismatch, testing::Values(Layout{2}, Layout{1, 1}, Layout{3}, Layout{2, 2}));

}  // namespace
}  // namespace smdp::test
