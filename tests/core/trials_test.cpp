// The choice between two ways by what they cost.
#include "transport/shm/trials.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace smdp {
namespace {

// How often the second way was gone in `uses` uses.
int use(Trials& trials, int uses, std::array<double, 2> costs) {
  int second = 0;
  for (int i = 0; i < uses; ++i) {
    second += static_cast<int>(trials.way());
    trials.record(costs[trials.way()]);
  }
  return second;
}

TEST(Trials, TheCheaperWayIsGoneButForTrials) {
  Trials first;
  EXPECT_LE(use(first, 1000, {1.0, 2.0}), 80);
  Trials second;
  EXPECT_GE(use(second, 1000, {2.0, 1.0}), 920);
}

TEST(Trials, FollowWhatChanges) {
  Trials trials;
  use(trials, 500, {1.0, 2.0});
  EXPECT_GE(use(trials, 500, {4.0, 2.0}), 450);
  EXPECT_LE(use(trials, 500, {1.0, 2.0}), 80);
}

TEST(Trials, OneUseThatWasDisturbedDecidesNothingForLong) {
  Trials trials;
  use(trials, 100, {1.0, 1.5});
  use(trials, 1, {50.0, 50.0});
  EXPECT_LE(use(trials, 320, {1.0, 1.5}), 25);
}

TEST(Trials, ADisturbedFirstUseOfEitherWayIsForgotten) {
  for (const int disturbed : {0, 1, 2, 3, 4}) {
    Trials trials;
    for (int i = 0; i < 40; ++i) {
      const double cost = trials.way() == 0 ? 1.0 : 1.5;
      trials.record(i == disturbed ? 50 * cost : cost);
    }
    EXPECT_LE(use(trials, 320, {1.0, 1.5}), 25) << disturbed;
  }
}

TEST(Trials, EqualWaysAreNoReasonToChange) {
  Trials trials;
  std::uint32_t way = 0;
  int changes = 0;
  for (int i = 0; i < 1000; ++i) {
    trials.record(1.0);
    changes += way != trials.way() ? 1 : 0;
    way = trials.way();
  }
  EXPECT_LE(changes, 1000 / static_cast<int>(Trials::kPeriod) + 2);
}

}  // namespace
}  // namespace smdp
