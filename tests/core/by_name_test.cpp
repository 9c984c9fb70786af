// Calls by name meet those of the same name, whatever order each rank makes them in.
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
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

Group::Handle sum(Group& group, float& value, const std::string& name, Call call = {}) {
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
  std::latch is_refused(1);  // before, the other ranks' call could meet the first of the two
  EXPECT_THROW(run(GetParam(),
                   [&](Group& group) {
                     float value = 1;
                     if (group.rank() == 0) {
                       float again = 1;
                       const Group::Handle handle = sum(group, value, "loss");
                       try {
                         sum(group, again, "loss");
                         ADD_FAILURE() << "the second call was not refused";
                       } catch (const MismatchError& error) {
                         EXPECT_NE(std::string(error.what()).find("two calls of 'loss'"), std::string::npos);
                       }
                       is_refused.count_down();
                       EXPECT_THROW(handle->wait(), Error);
                     }
                     is_refused.wait();
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
  std::latch others_have_called(world_size(GetParam()) - 1);
  EXPECT_THROW(run(GetParam(),
                   [&](Group& group) {
                     float value = 1;
                     float other = 1;
                     Call in_order;
                     in_order.async = true;
                     if (group.rank() == 0) others_have_called.wait();
                     const Group::Handle handle = sum(group, value, "loss");
                     try {
                       if (group.rank() == 0) handle->wait();
                       const Group::Handle next =
                           group.all_reduce(&other, &other, {}, DType::kFloat32, ReduceOp::kSum, 1.0, in_order);
                       if (group.rank() != 0) others_have_called.count_down();
                       next->wait();
                       if (group.rank() == 0) ADD_FAILURE() << "rank 0 saw no mismatch";
                     } catch (const Error&) {
                     }
                     throw ClosedError("the test is over");
                   }),
               Error);
}

// Other named calls may be set aside, or be asked for: nobody knows what comes next.
TEST_P(ByName, AMismatchClosesTheGroup) {
  EXPECT_THROW(run(GetParam(),
                   [](Group& group) {
                     float value = 1;
                     Call call;
                     call.async = call.by_name = true;
                     call.name = "loss";
                     const DType dtype = group.rank() == 0 ? DType::kInt32 : DType::kFloat32;
                     EXPECT_THROW(group.all_reduce(&value, &value, {}, dtype, ReduceOp::kSum, 1.0, call)->wait(),
                                  MismatchError);
                     EXPECT_THROW(group.barrier(), MismatchError);
                     throw ClosedError("the test is over");
                   }),
               Error);
}

// Rank 0 calls X, which no other rank does.
TEST_P(ByName, HasADeadlineWhileAnotherNameIsNext) {
  EXPECT_THROW(run(GetParam(),
                   [](Group& group) {
                     float value = 1;
                     Call call;
                     if (group.rank() == 1) call.timeout = std::chrono::seconds(2);
                     try {
                       sum(group, value, group.rank() == 0 ? "X" : "Y", call)->wait();
                       ADD_FAILURE() << "two names have met";
                     } catch (const TimeoutError& error) {
                       const std::string text = error.what();
                       EXPECT_NE(text.find("all_reduce 'Y' float32"), std::string::npos) << text;
                       EXPECT_NE(text.find("timed out after 2 s: it waits for 'X', which rank 0"), std::string::npos)
                           << text;
                     }
                     throw ClosedError("the test is over");
                   }),
               Error);
}

TEST_P(ByName, HearsThatRankZeroHasLeft) {
  std::vector<float> values(4, 1);  // rank 0 leaves while its operation may still read one of them
  EXPECT_THROW(run(GetParam(),
                   [&](Group& group) {
                     float& value = values[static_cast<std::size_t>(group.rank())];
                     const bool is_first = group.rank() == 0;
                     const Group::Handle handle = sum(group, value, is_first ? "X" : "Y");
                     // Meanwhile the others hear that X is next.
                     EXPECT_FALSE(is_first && handle->wait_for(std::chrono::milliseconds(300)));
                     if (!is_first) {
                       EXPECT_THROW(handle->wait(), PeerLostError);
                     }
                     throw ClosedError("the test is over");
                   }),
               Error);
}

TEST_P(ByName, RefusesACallWithoutAName) {
  run(GetParam(), [](Group& group) {
    float value = 1;
    EXPECT_THROW(sum(group, value, ""), InvalidArgument);
    group.barrier();
  });
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
