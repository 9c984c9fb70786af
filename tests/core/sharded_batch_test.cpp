// A batch that stops at the owners of its shards, and one that sends from them: together they are an all_reduce.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "collectives/batch.h"
#include "collectives/chunks.h"
#include "ranks.h"

namespace smdp::test {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 40, 3000, 100'003, 300'001};
constexpr float kPoison = -12345;
using Values = std::vector<std::vector<float>>;

Values inputs(int rank) {
  std::minstd_rand random(static_cast<unsigned>(rank + 1) * 40'503U);
  Values values;
  for (const std::size_t count : kCounts) {
    for (float& x : values.emplace_back(count)) x = static_cast<float>(random()) / 1e9F - 1;
  }
  return values;
}

std::vector<Batch::Item> items_of(Values& values, Part part, const std::vector<ShardEnds>& ends) {
  std::vector<Batch::Item> items;
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto* data = reinterpret_cast<std::byte*>(values[i].data());
    items.push_back({data,
                     data,
                     values[i].size(),
                     {DType::kFloat32, ReduceOp::kSum},
                     nullptr,
                     nullptr,
                     part,
                     ends.empty() ? nullptr : &ends[i]});
  }
  return items;
}

// Gives every other item to one owner, and cuts the others into parts of different lengths.
std::vector<ShardEnds> uneven(const Group& group, bool spans) {
  const std::size_t lanes = lanes_of(group.hosts());
  const std::size_t owners = spans ? lanes * group.hosts().size() : lanes;
  std::vector<ShardEnds> all;
  for (std::size_t i = 0; i < std::size(kCounts); ++i) {
    ShardEnds& ends = all.emplace_back();
    for (std::size_t owner = 0; owner < owners; ++owner) {
      const bool is_cut = i % 2 == 0;
      ends.push_back(is_cut ? kCounts[i] * (owner + 1) * (owner + 1) / owners / owners
                            : (owner < i % owners ? 0 : kCounts[i]));
    }
  }
  return all;
}

std::size_t local_index(const Group& group) { return static_cast<std::size_t>(group.local_rank()); }

std::size_t owned_by_all(const Group& group, const Batch::Item& item, const cost::ExchangeSizes& sizes, bool spans) {
  std::size_t sum = 0;
  const std::size_t hosts = spans ? group.hosts().size() : 1;
  for (std::size_t host = 0; host < hosts; ++host) {
    for (std::size_t local = 0; local < group.hosts()[host].size(); ++local) {
      for (const Slice& slice : owned_slices(item, sizes, spans, group.hosts(), host, local)) sum += slice.size();
    }
  }
  return sum;
}

void expect_halves_of_an_all_reduce(Group& group, bool spans, const std::vector<ShardEnds>& ends) {
  const cost::ExchangeSizes sizes{4096, 1 << 20, 1};
  Values whole = inputs(group.rank());
  const std::size_t count = whole.size();
  group.all_reduce_batch(std::make_shared<Batch>(items_of(whole, Part::kWhole, {}), count, sizes), {});

  Values sums = inputs(group.rank());
  const std::vector<Batch::Item> items = items_of(sums, Part::kToOwners, ends);
  group.all_reduce_batch(std::make_shared<Batch>(items, count, sizes, spans), {});
  Values sent;
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(owned_by_all(group, items[i], sizes, spans), items[i].count);
    std::vector<float>& out = sent.emplace_back(items[i].count, kPoison);
    const auto host = static_cast<std::size_t>(group.host_index());
    for (const Slice& own : owned_slices(items[i], sizes, spans, group.hosts(), host, local_index(group))) {
      for (std::size_t k = own.begin; k < own.end; ++k) {
        ASSERT_EQ(sums[i][k], whole[i][k]) << "item " << i << " at " << k;
        out[k] = sums[i][k];
      }
    }
  }
  group.all_reduce_batch(std::make_shared<Batch>(items_of(sent, Part::kFromOwners, ends), count, sizes, spans), {});
  EXPECT_EQ(sent, whole);
}

class ShardedBatch : public testing::TestWithParam<std::tuple<Layout, bool>> {};

TEST_P(ShardedBatch, HasTheBitsOfAnAllReduce) {
  GroupOptions options = quick_options();
  options.algorithm = "direct";  // on three hosts, small sums go another way otherwise
  const auto& [layout, spans] = GetParam();
  run(
      layout,
      [spans = spans](Group& group) {
        expect_halves_of_an_all_reduce(group, spans, {});
        expect_halves_of_an_all_reduce(group, spans, uneven(group, spans));
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ShardedBatch,
                         testing::Combine(testing::Values(Layout{1}, Layout{2}, Layout{3}, Layout{1, 1}, Layout{2, 2},
                                                          Layout{2, 1}, Layout{1, 1, 1}),
                                          testing::Bool()),
                         [](const auto& info) {
                           std::string name = std::get<1>(info.param) ? "world" : "host";
                           for (const int ranks : std::get<0>(info.param)) name += "_" + std::to_string(ranks);
                           return name;
                         });

}  // namespace
}  // namespace smdp::test
