// Why a group ends, and who is gone, without a group.
#include "collectives/engine/failures.h"

#include <gtest/gtest.h>

#include <string>

#include "smdp/error.h"

namespace smdp {
namespace {

using Tell = Failures::Tell;

Members three_ranks() {
  Members members;
  members.size = 3;
  members.name = "world";
  members.host_names = {"a", "a", "b"};
  members.hosts = {{0, 1}, {2}};
  return members;
}

std::string text_of(const std::exception_ptr& error) { return error ? Failure::of(error).text : ""; }

std::exception_ptr loss_of(int rank) {
  return std::make_exception_ptr(PeerLostError("[smdp] lost " + std::to_string(rank), {rank}));
}

class FailuresTest : public testing::Test {
 protected:
  const Members members_ = three_ranks();
  int wakes_ = 0;
  int failures_seen_ = 0;
  Failures failures_{
      members_,
      {[this] { ++wakes_; }, [this] { ++failures_seen_; }, [] { return std::string("Nothing is in flight."); }}};
};

TEST_F(FailuresTest, TheFirstErrorWinsAndIsToldOnce) {
  EXPECT_FALSE(failures_.is_news());
  failures_.fail(loss_of(1), Tell::kEveryone);
  failures_.fail(loss_of(2), Tell::kEveryone);
  EXPECT_EQ(failures_seen_, 1);
  EXPECT_EQ(text_of(failures_.error()), "[smdp] lost 1");
  EXPECT_THROW(failures_.check_usable(), PeerLostError);
  // Who has died counts all the same.
  EXPECT_EQ(text_of(failures_.death_of({2})), "[smdp] lost 2");
  EXPECT_EQ(failures_.death_of({0}), nullptr);
  EXPECT_EQ(failures_.take_untold()->lost, std::vector<int>{1});
  EXPECT_FALSE(failures_.take_untold());
}

TEST_F(FailuresTest, WhatAnotherRankToldIsNotToldAgain) {
  failures_.fail(loss_of(1), Tell::kNobody);
  EXPECT_FALSE(failures_.take_untold());
}

TEST_F(FailuresTest, ADepartureIsNewsButNoError) {
  failures_.on_left(2, "done");
  EXPECT_TRUE(failures_.is_news());
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(failures_.error(), nullptr);
  EXPECT_EQ(failures_.departure_of({0, 1}), nullptr);
  EXPECT_EQ(text_of(failures_.obstacle()), "[smdp] rank 0 of 3 (host a): rank 2 (host b) has left the group: done");
}

TEST_F(FailuresTest, ABrokenConnectionIsBlamedOnlyOnARankThatDoesNotSayWhy) {
  failures_.on_broken(1, "end of stream");
  failures_.on_broken(2, "end of stream");
  const Clock::time_point when = failures_.deadline();
  failures_.on_left(2, "");
  failures_.check_suspects(when - std::chrono::seconds(1));
  EXPECT_EQ(failures_.error(), nullptr);
  failures_.check_suspects(when + std::chrono::seconds(1));
  EXPECT_EQ(
      text_of(failures_.error()),
      "[smdp] rank 0 of 3 (host a): lost the connection to rank 1 (host a): end of stream. Nothing is in flight.");
  EXPECT_EQ(failures_.deadline(), Clock::time_point::max());
}

TEST_F(FailuresTest, ClosingKeepsAnEarlierError) {
  failures_.fail(loss_of(1), Tell::kEveryone);
  EXPECT_TRUE(failures_.close());
  EXPECT_EQ(text_of(failures_.error()), "[smdp] lost 1");
  EXPECT_FALSE(failures_.close());
}

}  // namespace
}  // namespace smdp
