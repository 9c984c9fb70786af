// How an exchange between hosts is cut follows a measurement, and changes no bit of the sum.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "collectives/batch.h"
#include "cost/exchange_cost.h"
#include "ranks.h"
#include "smdp/error.h"

namespace smdp::test {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::uint16_t k40000 = 0x78E2;  // of float16, to which the sum of two is infinite
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

TEST(ExchangeSizes, FollowWhatIsMeasured) {
  const auto usual = cost::exchange_sizes({100e-6, 1e9}, 2, 1);
  EXPECT_EQ(usual.shard, 128 * kKiB);
  EXPECT_EQ(usual.least, 2944U);  // 3 us at 1 GB/s, in whole cache lines
  // A long way: 10 ms at 100 MB/s.
  EXPECT_EQ(cost::exchange_sizes({10e-3, 100e6}, 2, 1).shard, 500'000U / 64 * 64);
  // So fast that messages cost more than bytes.
  EXPECT_EQ(cost::exchange_sizes({20e-6, 10e9}, 2, 1).shard, 300'000U / 64 * 64);
  EXPECT_EQ(cost::exchange_sizes({20e-6, 10e9}, 2, 1).least, 30'000U / 64 * 64);
  // Ranks of a host share its link, peers the way to them.
  EXPECT_LT(cost::exchange_sizes({20e-6, 10e9}, 2, 2).shard, 300'000U / 64 * 64);
  EXPECT_LT(cost::exchange_sizes({10e-3, 100e6}, 4, 1).shard, cost::exchange_sizes({10e-3, 100e6}, 2, 1).shard);
  EXPECT_EQ(cost::exchange_sizes({1, 1e12}, 2, 1).shard, kKiB * kKiB);
  cost::Measured one;
  one.streams = 1;
  EXPECT_EQ(cost::exchange_sizes(one, 2, 1).streams, 1U);
  EXPECT_EQ(cost::exchange_sizes({}, 1, 4).shard, cost::ExchangeSizes{}.shard);
}

TEST(ExchangeSizes, FewerOwnersOfLittle) {
  const cost::ExchangeSizes sizes{128 * kKiB, 4 * kKiB, 1};
  EXPECT_EQ(sizes.owners(0, 8), 1U);
  EXPECT_EQ(sizes.owners(4 * kKiB - 1, 8), 1U);
  EXPECT_EQ(sizes.owners(12 * kKiB, 8), 3U);
  EXPECT_EQ(sizes.owners(32 * kKiB, 8), 8U);
  EXPECT_EQ(sizes.owners(kKiB * kKiB, 8), 8U);
}

std::vector<float> sum_of(Group& group, std::size_t count, const cost::ExchangeSizes& sizes) {
  std::minstd_rand random(static_cast<unsigned>(group.rank() + 1) * 40'503U);
  std::vector<float> data(count);
  for (float& x : data) x = static_cast<float>(random()) / 1e9F - 1;
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  std::vector<Batch::Item> items{{bytes, bytes, count, {DType::kFloat32, ReduceOp::kSum}}};
  group.all_reduce_batch(std::make_shared<Batch>(std::move(items), 1, sizes), {});
  return data;
}

class Exchange : public testing::TestWithParam<std::tuple<Layout, const char*>> {};

TEST_P(Exchange, SameBitsHoweverItIsCut) {
  GroupOptions options = quick_options();
  options.streams = 3;
  options.algorithm = std::get<1>(GetParam());
  run(
      std::get<0>(GetParam()),
      [](Group& group) {
        for (const std::size_t count : {0, 1, 40, 3000, 100'003, 700'001}) {
          const std::vector<float> expected = sum_of(group, count, {});
          for (const cost::ExchangeSizes& sizes :
               {cost::ExchangeSizes{4096, 1, kAll}, cost::ExchangeSizes{4096, 1 << 30, 1},
                cost::ExchangeSizes{kKiB * kKiB, 64 * kKiB, 2}}) {
            EXPECT_EQ(sum_of(group, count, sizes), expected) << count << " in " << sizes.shard << ", " << sizes.least;
          }
        }
      },
      options);
}

TEST_P(Exchange, MeansOfFloat16DoNotOverflowOnTheWay) {
  GroupOptions options = quick_options();
  options.algorithm = std::get<1>(GetParam());
  run(
      std::get<0>(GetParam()),
      [](Group& group) {
        const auto size = static_cast<std::size_t>(group.size());
        for (const std::size_t count : {1, 3000, 100'003}) {
          const std::array<std::int64_t, 1> shape{static_cast<std::int64_t>(count)};
          const std::vector<std::uint16_t> in(count, k40000);
          std::vector<std::uint16_t> out(count);
          group.all_reduce(in.data(), out.data(), shape, DType::kFloat16, ReduceOp::kAvg);
          EXPECT_EQ(out, in) << "all_reduce of " << count;
          out.assign(count, 0);
          group.reduce_scatter(std::vector<ConstBuffer>(size, {in.data(), count}), {out.data(), count}, DType::kFloat16,
                               ReduceOp::kAvg);
          EXPECT_EQ(out, in) << "reduce_scatter of " << count;
          out.assign(count, 0);
          group.reduce(in.data(), out.data(), shape, DType::kFloat16, ReduceOp::kAvg, 0);
          if (group.rank() == 0) {
            EXPECT_EQ(out, in) << "reduce of " << count;
          }
        }
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Exchange,
                         testing::Combine(testing::Values(Layout{1, 1}, Layout{2, 2}, Layout{3, 1}, Layout{1, 1, 1, 1}),
                                          testing::Values("auto", "direct", "ring", "recursive_doubling")),
                         [](const auto& info) {
                           std::string name = describe(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                           for (char& c : name) c = c == '+' ? '_' : c;
                           return name;
                         });

TEST(Exchange, CountsThatDifferAreNamedWhereFewOwn) {
  // Of nothing, one host still owns, so that every rank hears of the others.
  EXPECT_THROW(run({1, 1, 1}, [](Group& group) { sum_of(group, group.rank() == 2 ? 0 : 5000, {}); }), MismatchError);
  EXPECT_THROW(run({1, 1, 1}, [](Group& group) { sum_of(group, group.rank() == 2 ? 5000 : 0, {}); }), MismatchError);
}

}  // namespace
}  // namespace smdp::test
