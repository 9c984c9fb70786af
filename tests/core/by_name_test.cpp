// Calls by name meet those of the same name, whatever order each rank makes them in.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ranks.h"
#include "smdp/call_name.h"
#include "smdp/error.h"

namespace smdp::test {
namespace {

Group::Handle sum(Group& group, float& value, const std::string& name) {
  Call call;
  call.async = true;
  call.name = name;
  call.by_name = true;
  return group.all_reduce(&value, &value, {}, DType::kFloat32, ReduceOp::kSum, 1.0, call);
}

class ByName : public testing::TestWithParam<Layout> {};

TEST_P(ByName, MeetsTheSameNameInAnyOrder) {
  run(GetParam(), [](Group& group) {
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    std::vector<std::size_t> order(20);
    std::iota(order.begin(), order.end(), 0);
    for (int step = 0; step < 10; ++step) {
      // All in some steps, a part in others, and a call without a name between steps.
      const std::size_t count = step % 2 == 0 ? order.size() : order.size() / 2;
      std::vector<float> values(count);
      std::vector<Group::Handle> handles(count);
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t i : order) {
        if (i >= count) continue;
        values[i] = static_cast<float>(i);
        handles[i] = sum(group, values[i], "tensor " + std::to_string(i));
      }
      for (const Group::Handle& handle : handles) handle->wait();
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(values[i], static_cast<float>(i) * static_cast<float>(group.size())) << i;
      }
      group.barrier();
    }
  });
}

TEST_P(ByName, RefusesTwoOfOneName) {
  EXPECT_THROW(run(GetParam(),
                   [](Group& group) {
                     std::vector<float> values(2);
                     std::vector<Group::Handle> handles;
                     try {
                       for (float& value : values) handles.push_back(sum(group, value, "loss"));
                     } catch (const MismatchError& error) {
                       EXPECT_NE(std::string(error.what()).find("two calls of 'loss'"), std::string::npos);
                     }
                     // The first may have met the other ranks' first in time.
                     for (const Group::Handle& handle : handles) handle->wait_for(std::chrono::seconds(20));
                     EXPECT_THROW(group.barrier(), Error);
                     throw ClosedError("the test is over");
                   }),
               Error);
}

TEST_P(ByName, EndsWithTheGroup) {
  EXPECT_THROW(run(GetParam(),
                   [](Group& group) {
                     float value = 1;
                     const Group::Handle handle = sum(group, value, "tensor of rank " + std::to_string(group.rank()));
                     if (group.rank() == 0) {
                       EXPECT_FALSE(handle->wait_for(std::chrono::milliseconds(50)));
                       group.abort("the test is over");
                     }
                     EXPECT_THROW(handle->wait(), Error);
                     throw ClosedError("the test is over");
                   }),
               Error);
}

TEST_P(ByName, DoesNotMeetACallInOrder) {
  EXPECT_THROW(run(GetParam(),
                   [](Group& group) {
                     float value = 1;
                     const Group::Handle handle = sum(group, value, "loss");
                     try {
                       if (group.rank() == 0) handle->wait();
                       group.all_reduce(&value, &value, {}, DType::kFloat32, ReduceOp::kSum);
                       if (group.rank() == 0) ADD_FAILURE() << "rank 0 saw no mismatch";
                     } catch (const Error&) {
                     }
                     throw ClosedError("the test is over");
                   }),
               Error);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ByName, testing::Values(Layout{2}, Layout{3}, Layout{1, 1}, Layout{2, 2}));

TEST(CallName, IsComparedWhereACallHasNone) {
  EXPECT_THROW(run({2},
                   [](Group& group) {
                     float value = 1;
                     set_call_name(group.rank() == 0 ? "loss" : "accuracy");
                     group.all_reduce(&value, &value, {}, DType::kFloat32, ReduceOp::kSum);
                   }),
               MismatchError);
}

}  // namespace
}  // namespace smdp::test
