// Figures of a group that is disturbed while it is measured.
#include "fusion/calibration.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "cost/exchange_cost.h"
#include "cost/fusion_cost.h"
#include "fusion/second_look.h"
#include "ranks.h"

namespace smdp {
namespace {

// A link whose samples number first to last are longer than they should be, each by another factor.
class Link : public Probe {
 public:
  explicit Link(int first = 0, int last = -1) : first_(first), last_(last) {}

  double latency = 50e-6;
  double bandwidth = 4e9;
  double one_stream = 2e9;

  double all_reduce(std::size_t floats, std::size_t streams) override {
    const double rate = streams == 1 ? one_stream : bandwidth;
    return disturbed(latency + static_cast<double>(4 * floats) / rate);
  }
  double sum(std::size_t floats) override { return disturbed(static_cast<double>(8 * floats) / 10e9); }
  bool agreed(bool mine) override { return mine; }

  int samples() const { return samples_; }

 private:
  double disturbed(double seconds) {
    const int number = samples_++;
    const bool is_disturbed = number >= first_ && number <= last_;
    return is_disturbed ? seconds * (3 + number % 7) : seconds;
  }

  int first_;
  int last_;
  int samples_ = 0;
};

TEST(Calibration, FindsWhatTheLinkDoes) {
  Link link;
  const cost::Measured found = calibrate(link, true);
  EXPECT_NEAR(found.latency, 50e-6, 1e-7);
  EXPECT_NEAR(found.bandwidth, 4e9, 4e6);
  EXPECT_NEAR(found.reduction, 10e9, 1e7);
  EXPECT_GT(found.streams, 1U);  // twice as fast
  EXPECT_LE(link.samples(), 35);
}

TEST(Calibration, OneStreamIsTakenWhereMoreGainLittle) {
  Link link;
  link.one_stream = 3.8e9;
  EXPECT_EQ(calibrate(link, true).streams, 1U);
}

TEST(Calibration, ABusyMomentChangesNothingThatFollows) {
  Link quiet;
  const cost::Measured expected = calibrate(quiet, true);
  for (int first = 0; first < quiet.samples(); ++first) {
    Link busy(first, first + 7);
    const cost::Measured found = calibrate(busy, true);
    EXPECT_DOUBLE_EQ(found.latency, expected.latency) << first;
    EXPECT_DOUBLE_EQ(found.bandwidth, expected.bandwidth) << first;
    EXPECT_DOUBLE_EQ(found.reduction, expected.reduction) << first;
    EXPECT_EQ(found.streams, expected.streams) << first;
    EXPECT_EQ(cost::fusion_sizes(found, 2, 2, 25 << 20).usual, cost::fusion_sizes(expected, 2, 2, 25 << 20).usual);
    EXPECT_EQ(cost::exchange_sizes(found, 4, 2).least, cost::exchange_sizes(expected, 4, 2).least);
  }
}

TEST(Calibration, ASlowLinkIsNotLookedAtForLong) {
  Link link;
  link.latency = 20e-3;
  link.bandwidth = link.one_stream = 1e6;
  const cost::Measured found = calibrate(link, true);
  EXPECT_NEAR(found.bandwidth, 1e6, 1e3);
  EXPECT_EQ(found.streams, 1U);
  EXPECT_LE(link.samples(), 11);
}

TEST(Calibration, ALoadedMachineMayTakeLongerForLess) {
  class Loaded : public Link {
   public:
    double all_reduce(std::size_t floats, std::size_t) override { return floats == 1 ? 2e-3 : 1e-3; }
  };
  Loaded link;
  const cost::Measured found = calibrate(link, true);
  EXPECT_EQ(found.floats, std::size_t{1} << 20);
  EXPECT_GT(found.bandwidth, 0);
}

TEST(SecondLook, WhatIsClearlyShorterCorrectsTheFigures) {
  const Sampled disturbed{400e-6, 1400e-6, 1e-3};
  EXPECT_FALSE(shortened(disturbed, {250e-6, 1200e-6, 0.9e-3}));  // that may be chance
  EXPECT_FALSE(shortened(disturbed, {500e-6, 2400e-6, 2e-3}));
  const auto by = shortened(disturbed, {100e-6, 1050e-6, 1e-3});
  ASSERT_TRUE(by);
  EXPECT_EQ(by->latency, 250U);
  EXPECT_EQ(by->transfer, 1000U);
  cost::Measured measured;
  measured.latency = 220e-6;
  measured.bandwidth = 1e9;
  const cost::Measured found = corrected(measured, *by);
  EXPECT_DOUBLE_EQ(found.latency, 55e-6);
  EXPECT_DOUBLE_EQ(found.bandwidth, 1e9);
  EXPECT_DOUBLE_EQ(corrected(measured, *shortened(disturbed, {400e-6, 650e-6, 1e-3})).bandwidth, 4e9);
  EXPECT_DOUBLE_EQ(corrected(measured, *shortened(disturbed, {400e-6, 1400e-6, 0.5e-3})).reduction, 20e9);
}

TEST(SecondLook, SamplesEndWithoutAnybodyWaiting) {
  test::run({2}, [](Group& group) {
    cost::Measured measured;
    measured.floats = 1 << 14;
    SecondLook look(group, measured);
    EXPECT_EQ(look.last(), nullptr);
    look.begin(group);
    const Group::Handle last = look.last();
    group.barrier();  // behind them
    EXPECT_TRUE(last->done());
    look.end();
    EXPECT_EQ(look.last(), nullptr);
    look.news();
    EXPECT_FALSE(look.news());  // it is told once
  });
}

}  // namespace
}  // namespace smdp
