// How an exchange between hosts is cut follows a measurement, and changes no bit of the sum.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "collectives/batch.h"
#include "collectives/chunks.h"
#include "cost/exchange_cost.h"
#include "fusion/gradient_codec.h"
#include "fusion/layout.h"
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
  // The more hosts, the longer the second hop of a last chunk of as long shards: 47.8 MB/s.
  EXPECT_EQ(cost::exchange_sizes({200e-6, 47.8e6}, 4, 2).shard, 64 * kKiB);
  EXPECT_EQ(cost::exchange_sizes({200e-6, 47.8e6}, 8, 2).shard, 32 * kKiB);
  EXPECT_EQ(cost::exchange_sizes({200e-6, 47.8e6}, 32, 2).shard, 32 * kKiB);
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

// By owner, ranks of one host after the other: what it owns of each item. Checks that they own all of it, once.
std::vector<std::vector<std::size_t>> owned(const Batch& batch, std::size_t hosts, std::size_t lanes) {
  const Cut all = cut(batch, Planner{Algorithm::kDirect}, hosts, lanes);
  std::vector<std::vector<std::size_t>> bytes(batch.items().size(), std::vector<std::size_t>(hosts * lanes));
  std::vector<std::size_t> ends(batch.items().size());
  for (const Chunk& chunk : all.chunks) {
    const Batch::Item& item = batch.items()[chunk.item];
    const std::size_t element = size_of(item.reduction.dtype);
    const std::size_t owners = item.codec != nullptr ? hosts : owners_of(chunk, batch.sizes(), hosts, lanes, element);
    EXPECT_LE(chunk.size * element,
              chunk_bytes(item.codec != nullptr, Algorithm::kDirect, batch.sizes(), hosts, lanes));
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const Slice slice = slice_of_lane(chunk, item, lanes, lane);
      std::size_t end = 0;
      for (std::size_t host = 0; host < owners; ++host) {
        const Slice shard = shard_of(slice.size(), owners, host, element);
        EXPECT_EQ(slice.begin + shard.begin, ends[chunk.item]);
        ends[chunk.item] = slice.begin + shard.end;
        bytes[chunk.item][host * lanes + lane] += shard.size() * element;
        end = shard.end;
      }
      EXPECT_EQ(end, slice.size());
    }
    EXPECT_EQ(chunk.is_last, ends[chunk.item] == item.count);
  }
  return bytes;
}

std::vector<Chunk> all_of(const Chunks& chunks) {
  std::vector<Chunk> all;
  for (std::size_t k = 0; k < chunks.count(); ++k) all.push_back(chunks.at(0, k));
  return all;
}

// An embedding of 80 MB among small tensors, as the reducer lays it out: every owner of a buffer has the same bytes of
// it, whatever the link, also where its last chunk is short.
TEST(ExchangeSizes, OwnersHaveTheSameBytes) {
  std::vector<Gradient> gradients{{"embedding", 20'000'037, DType::kFloat32}};
  for (std::size_t i = 0; i < 200; ++i) gradients.push_back({"small", 100 + 37 * i, DType::kFloat32});
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  const std::size_t cap = std::size_t{25} << 20;
  for (const cost::Measured& measured : {cost::Measured{200e-6, 50e6}, cost::Measured{20e-6, 10e9}}) {
    for (const auto& [hosts, lanes] : {std::pair{2U, 2U}, {4U, 3U}, {8U, 1U}, {16U, 1U}, {32U, 1U}, {32U, 8U}}) {
      for (const bool is_coded : {false, true}) {
        const smdp::Layout layout = lay_out(gradients, order, cost::fusion_sizes(measured, hosts, lanes, cap), cap);
        const cost::ExchangeSizes sizes = cost::exchange_sizes(measured, hosts, lanes);
        const auto codec = make_cast_codec(DType::kBfloat16);
        std::vector<Batch::Item> items;
        for (const PlannedBuffer& buffer : layout.buffers) {
          items.push_back(
              {nullptr, nullptr, buffer.count, {buffer.dtype, ReduceOp::kSum}, is_coded ? codec.get() : nullptr});
        }
        const Batch batch(std::move(items), 0, sizes);
        std::vector<std::size_t> step(hosts * lanes);
        const auto bytes = owned(batch, hosts, lanes);
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          std::vector<std::size_t> some = bytes[i];
          for (std::size_t owner = 0; owner < some.size(); ++owner) step[owner] += some[owner];
          std::erase(some, 0);
          const auto [least, most] = std::minmax_element(some.begin(), some.end());
          EXPECT_LE(*most - *least, 64U) << "buffer " << i << " between " << hosts << " x " << lanes;
          const bool is_short = batch.items()[i].bytes() / lanes / hosts < sizes.least;
          if (is_coded || !is_short) {
            EXPECT_EQ(some.size(), bytes[i].size()) << i;
          }
        }
        const double mean = static_cast<double>(std::accumulate(step.begin(), step.end(), std::size_t{0})) /
                            static_cast<double>(step.size());
        EXPECT_LE(static_cast<double>(*std::max_element(step.begin(), step.end())) / mean, 1.01)
            << hosts << " x " << lanes;
      }
    }
  }
}

TEST(ExchangeSizes, ChunksOfABufferAreEqual) {
  const cost::ExchangeSizes sizes = cost::exchange_sizes({20e-6, 10e9}, 8, 1);
  const std::size_t most = chunk_bytes(false, Algorithm::kDirect, sizes, 8, 1) / sizeof(float);
  for (const std::size_t count : {std::size_t{0}, std::size_t{5}, most, most + 1, 7 * most + 40, 7 * most - 3}) {
    const Batch::Item item{nullptr, nullptr, count, {DType::kFloat32, ReduceOp::kSum}};
    const std::vector<Chunk> chunks = all_of(Chunks(item, Algorithm::kDirect, sizes, 8, 1));
    EXPECT_EQ(chunks.size(), std::max<std::size_t>(1, (count + most - 1) / most));
    const auto [least, longest] = std::minmax_element(
        chunks.begin(), chunks.end(), [](const Chunk& one, const Chunk& other) { return one.size < other.size; });
    EXPECT_LT(longest->size - least->size, 2 * 8 * 16U) << count;
  }
  // In a ring the order of a sum depends on the place, so nothing is moved there.
  const Batch::Item item{nullptr, nullptr, 3 * most + 40, {DType::kFloat32, ReduceOp::kSum}};
  const std::vector<Chunk> chunks = all_of(Chunks(item, Algorithm::kRing, sizes, 8, 1));
  EXPECT_EQ(chunks[1].begin, 8 * cost::ExchangeSizes{}.shard / sizeof(float));
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
