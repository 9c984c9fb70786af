// The planner's choices, and the model behind them.
#include "collectives/planner.h"

#include <gtest/gtest.h>

#include <string>

#include "cost/collective_cost.h"
#include "smdp/error.h"

namespace smdp {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kSlot = 256 * kKiB;

TEST(Planner, SmallOneShotLargeTwoShot) {
  const Planner planner;
  EXPECT_EQ(planner.local_all_reduce(4, 2, kSlot), Algorithm::kOneShot);
  EXPECT_EQ(planner.local_all_reduce(64 * kKiB, 2, kSlot), Algorithm::kTwoShot);
  EXPECT_EQ(planner.local_all_reduce(1024 * kKiB, 2, kSlot), Algorithm::kTwoShot);
}

TEST(Planner, ExplainsWhatNoMemoryHolds) {
  const std::string text = Planner().explain(std::size_t{1} << 62U, 2, 2, kSlot, 1);
  EXPECT_NE(text.find("8796093022208 chunks of 524288 bytes, 4 owners of 131072 bytes"), std::string::npos) << text;
}

TEST(Planner, SmallMessagesDoubleLargeOnesGoDirect) {
  const Planner planner;
  EXPECT_EQ(planner.host_exchange(8, 8), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(planner.host_exchange(25 * kKiB * kKiB, 4), Algorithm::kDirect);
  EXPECT_EQ(planner.host_exchange(1024 * kKiB, 4096), Algorithm::kRecursiveDoubling);
  // A ring sends as many messages as direct exchange, one after the other.
  EXPECT_EQ(planner.host_exchange(256 * kKiB * kKiB, 4096), Algorithm::kDirect);
}

TEST(Planner, ForcedAndStrict) {
  EXPECT_EQ((Planner{Algorithm::kRing, false}.host_exchange(8, 4)), Algorithm::kRing);
  EXPECT_EQ((Planner{Algorithm::kRing, true}.host_exchange(8, 4)), Algorithm::kDirect);
  EXPECT_EQ((Planner{Algorithm::kOneShot, false}.local_all_reduce(kSlot, 4, kSlot)), Algorithm::kOneShot);
  EXPECT_EQ((Planner{Algorithm::kOneShot, false}.local_all_reduce(kSlot + 1, 4, kSlot)), Algorithm::kTwoShot);
  EXPECT_THROW(parse_algorithm("fastest"), ConfigError);
}

TEST(Planner, SaysWhereANameDecidesNothing) {
  EXPECT_EQ(Planner().why_idle(1), "");
  EXPECT_EQ((Planner{Algorithm::kTwoShot}.why_idle(1)), "");
  EXPECT_EQ((Planner{Algorithm::kTree}.why_idle(2)), "");
  EXPECT_EQ((Planner{Algorithm::kDirect, true}.why_idle(2)), "");
  EXPECT_NE((Planner{Algorithm::kTwoShot}.why_idle(2)).find("SMDP_ALGORITHM=two_shot has no effect"),
            std::string::npos);
  EXPECT_NE((Planner{Algorithm::kTree}.why_idle(1)).find("SMDP_ALGORITHM=tree has no effect"), std::string::npos);
  EXPECT_NE((Planner{Algorithm::kRing, true}.why_idle(2)).find("SMDP_DETERMINISTIC=strict"), std::string::npos);
  EXPECT_TRUE((Planner{Algorithm::kTree}.takes_tree()));
  EXPECT_FALSE((Planner{Algorithm::kTree, true}.takes_tree()));
}

TEST(Cost, LargeMessagesApproachTheBound) {
  const cost::Network network;
  const double bytes = 1e9;
  const double bound = 2.0 * 3 / 4 * bytes / network.bandwidth;
  EXPECT_NEAR(cost::direct(bytes, 4), bound, 0.1 * bound);
  EXPECT_NEAR(cost::ring(bytes, 4), bound, 0.1 * bound);
  EXPECT_GT(cost::recursive_doubling(bytes, 4), 1.3 * bound);
}

}  // namespace
}  // namespace smdp
