// Ranks that wait for each other in different groups hear of it within seconds, whichever group they wait in; ranks
// that only come late, or by another thread, do not.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "smdp/error.h"
#include "smdp/gradient_reducer.h"

namespace smdp::test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

void sum(Group& group, bool async = false) {
  std::vector<float> data(8, 1.0F);
  Call call;
  call.async = async;
  const Group::Handle handle = group.all_reduce(data.data(), data.data(), std::vector<std::int64_t>{8}, DType::kFloat32,
                                                ReduceOp::kSum, 1.0, call);
  if (async) handle->wait();
}

// Every rank's part ends in a MismatchError that has the texts.
void expect_deadlock(const Layout& layout, const std::function<void(Group&)>& prepare,
                     const std::function<void(Group&)>& part, const std::vector<std::string>& texts) {
  std::barrier over(world_size(layout));
  const auto body = [&](Group& group) {
    prepare(group);
    const auto start = steady_clock::now();
    try {
      part(group);
      ADD_FAILURE() << "rank " << group.rank() << " did not wait for the others";
    } catch (const MismatchError& error) {
      for (const std::string& text : texts) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
            << "rank " << group.rank() << ": " << text << " not in: " << error.what();
      }
    } catch (const Error& error) {
      ADD_FAILURE() << "rank " << group.rank() << ": " << error.what();
    }
    EXPECT_LT(steady_clock::now() - start, seconds(20));
    over.arrive_and_wait();                 // nobody hears of a departure instead
    throw ClosedError("the test is over");  // instead of run()'s barrier
  };
  EXPECT_THROW(run(layout, body), ClosedError);
}

class Deadlock : public testing::TestWithParam<Layout> {};

TEST_P(Deadlock, BetweenACollectiveAndATrainingStep) {
  std::vector<std::unique_ptr<GradientReducer>> reducers(static_cast<std::size_t>(world_size(GetParam())));
  expect_deadlock(
      GetParam(),
      [&](Group& group) {
        auto& reducer = reducers[static_cast<std::size_t>(group.rank())];
        reducer = std::make_unique<GradientReducer>(group, std::vector<Gradient>{{"w", 100, DType::kFloat32}},
                                                    GradientReducerOptions{});
      },
      [&](Group& group) {
        if (group.rank() == 0) return sum(group);
        std::vector<float> gradient(100);
        GradientReducer& reducer = *reducers[static_cast<std::size_t>(group.rank())];
        reducer.ready(0, gradient.data());
        reducer.finish();
        reducer.wait();
      },
      {"rank 0", "all_reduce #1 float32[8] SUM of group", "which rank", "it waits in all_reduce #", "gradients-0'",
       "Neither can end before the other"});
}

TEST_P(Deadlock, WhereOneRankWaitsLongBeforeTheOthers) {
  std::vector<std::unique_ptr<Group>> others(static_cast<std::size_t>(world_size(GetParam())));
  expect_deadlock(
      GetParam(), [&](Group& group) { others[static_cast<std::size_t>(group.rank())] = group.split(0, 0, "other"); },
      [&](Group& group) {
        if (group.rank() == 0) return sum(group, true);
        std::this_thread::sleep_for(seconds(2));
        others[static_cast<std::size_t>(group.rank())]->barrier();
      },
      {"all_reduce #", "barrier #1 of group", "other-", "Neither can end before the other"});
}

TEST_P(Deadlock, WhereOneRankMakesAGroup) {
  expect_deadlock(
      GetParam(), [](Group& group) { group.barrier(); },
      [](Group& group) {
        if (group.rank() != 0) return sum(group);
        const auto alone = group.twin("alone", 0);
      },
      {"all_reduce #2", "it is creating group", "alone-0', which all its ranks must join"});
}

TEST_P(Deadlock, WhereRanksMakeDifferentGroups) {
  const auto make = [](Group& group) { const auto made = group.twin(group.rank() == 0 ? "one" : "two", 0); };
  const std::vector<std::string> texts{"rank 0", " waits for rank 1", "one-", "and that one waits as well", "two-"};
  expect_deadlock(GetParam(), [](Group&) {}, make, texts);
}

// A thread that has called nothing so far may be the one that another rank waits for.
TEST_P(Deadlock, IsNoneWhereThreadsMayStillCall) {
  run(GetParam(), [](Group& group) {
    const auto one = group.split(0, 0, "one");
    const auto two = group.split(0, 0, "two");
    Group& own = group.rank() == 0 ? *one : *two;
    Group& other = group.rank() == 0 ? *two : *one;
    std::thread helper([&] {
      std::this_thread::sleep_for(seconds(4));
      sum(other);
    });
    std::vector<float> data(8, 1.0F);
    Call call;
    call.interrupted = [] {
      note_other_threads(true);
      return false;
    };
    std::exception_ptr error;
    try {
      own.all_reduce(data.data(), data.data(), std::vector<std::int64_t>{8}, DType::kFloat32, ReduceOp::kSum, 1.0,
                     call);
    } catch (...) {
      error = std::current_exception();
    }
    helper.join();
    if (error) std::rethrow_exception(error);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Deadlock, testing::Values(Layout{2}, Layout{2, 1}),
                         [](const auto& info) { return "Hosts" + std::to_string(info.index); });

// A waits for B in one group, B for C in another, C for A in a third.
TEST(Deadlocks, OfThreeGroups) {
  std::vector<std::vector<std::unique_ptr<Group>>> pairs(3);
  expect_deadlock(
      Layout{3},
      [&](Group& group) {
        for (int left_out = 0; left_out < 3; ++left_out) {
          const int color = group.rank() == left_out ? -1 : 0;
          pairs[static_cast<std::size_t>(group.rank())].push_back(
              group.split(color, 0, "without" + std::to_string(left_out)));
        }
      },
      [&](Group& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        pairs[rank][(rank + 2) % 3]->barrier();  // of this rank and the next
      },
      {"barrier #1 of group", "without", "Neither can end before the other"});
}

// The thread that calls the one group's operations is not the one that waits in the other.
TEST(Deadlocks, AreNotSeenWhereThreadsComeLate) {
  run(Layout{2}, [](Group& group) {
    const std::unique_ptr<Group> other = group.split(0, 0, "other");
    other->barrier();
    const bool is_first = group.rank() == 0;
    const auto late = [](bool is_late) {
      if (is_late) std::this_thread::sleep_for(seconds(4));
    };
    std::thread beside([&] {
      other->barrier();  // from here on this thread's
      late(!is_first);
      other->barrier();
    });
    late(is_first);
    sum(group);
    beside.join();
  });
}

// A thread that saves, in a group that it has not used yet, while the other ones make groups.
TEST(Deadlocks, AreNotSeenWhereAThreadBesideCallsFirst) {
  run(Layout{2}, [](Group& group) {
    const std::unique_ptr<Group> saving = group.split(0, 0, "saving");
    std::thread beside([&] {
      if (group.rank() == 0) std::this_thread::sleep_for(seconds(4));
      saving->barrier();
    });
    if (group.rank() == 1) std::this_thread::sleep_for(seconds(4));
    group.twin("late", 0)->barrier();
    beside.join();
  });
}

// As frameworks do whose own threads call operations: no deadlock is certain, but who waits hears what is made.
TEST(Deadlocks, NameTheGroupThatAnotherThreadMakes) {
  run(Layout{2}, [](Group& group) {
    const std::unique_ptr<Group> other = group.split(0, 0, "other");
    other->barrier();
    const auto meet = [&] { group.twin("late", 0, "a test")->barrier(); };
    if (group.rank() == 1) {
      std::thread(meet).join();
      return;
    }
    Call call;
    call.timeout = std::chrono::milliseconds(3500);
    try {
      other->barrier(call);
      ADD_FAILURE() << "a barrier that one rank has not called has ended";
    } catch (const TimeoutError& error) {
      EXPECT_NE(std::string(error.what()).find("late-1' (a test), which all its ranks must join"), std::string::npos)
          << error.what();
    }
    meet();
  });
}

// No thread waits, but what one rank makes takes the place of the group in which the other is.
TEST(Deadlocks, OfAGroupThatTakesThePlaceOfThisOne) {
  run(Layout{2}, [](Group& group) {
    const std::unique_ptr<Group> other = group.split(0, 0, "other");
    other->barrier();
    const auto expect = [](const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
      EXPECT_NE(std::string(error.what()).find("late-1' (a test), which all its ranks must join. Neither"),
                std::string::npos)
          << error.what();
    };
    if (group.rank() == 1) {
      std::thread([&] {
        try {
          group.twin("late", 0, "a test", {other->name()});
          ADD_FAILURE() << "a group was made to which one rank has not come";
        } catch (const Error& error) {
          expect(error);
        }
      }).join();
      return;
    }
    Call call;
    call.async = true;
    std::vector<float> data(8);
    const Group::Handle handle = other->all_reduce(data.data(), data.data(), std::vector<std::int64_t>{8},
                                                   DType::kFloat32, ReduceOp::kSum, 1.0, call);
    for (int i = 0; i < 1000 && !handle->done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_TRUE(handle->done());
    try {
      std::rethrow_exception(handle->error());
    } catch (const Error& error) {
      expect(error);
    }
  });
}

// Who gives an operation less time than is usual does without it, and without what waits elsewhere for this rank.
TEST(Deadlocks, LeaveShortDeadlinesAlone) {
  run(Layout{2}, [](Group& group) {
    const std::unique_ptr<Group> other = group.split(0, 0, "other");
    if (group.rank() == 1) {
      Call call;
      call.timeout = std::chrono::milliseconds(3500);
      EXPECT_THROW(other->barrier(call), TimeoutError);
    }
    sum(group);
  });
}

// Called is called: what waits in the queue comes without the thread.
TEST(Deadlocks, AreNotSeenWhereOperationsAreQueued) {
  run(Layout{3}, [](Group& group) {
    const std::unique_ptr<Group> pair = group.split(group.rank() == 2 ? -1 : 0, 0, "pair");
    std::vector<float> data(8, 1.0F);
    const std::vector<std::int64_t> shape{8};
    Call call;
    call.async = true;
    if (group.rank() == 2) std::this_thread::sleep_for(seconds(4));
    const Group::Handle first =
        group.all_reduce(data.data(), data.data(), shape, DType::kFloat32, ReduceOp::kSum, 1.0, call);
    std::vector<float> more(8, 1.0F);
    const Group::Handle second =
        group.all_reduce(more.data(), more.data(), shape, DType::kFloat32, ReduceOp::kSum, 1.0, call);
    if (group.rank() == 1) pair->barrier();
    second->wait();
    if (group.rank() == 0) pair->barrier();
    EXPECT_EQ(data[0], 3.0F);
    EXPECT_TRUE(first->done());
  });
}

}  // namespace
}  // namespace smdp::test
