// Every collective against what it must give, on one host and on several, for sizes that are empty, odd, or take many
// chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "reduce/streamed.h"
#include "smdp/error.h"

namespace smdp::test {
namespace {

#if defined(__SANITIZE_THREAD__)  // ten times as slow, and more ranks make no other races
const Layout kLayouts[] = {{2}, {3}, {1, 1}, {2, 2}, {1, 1, 1}, {1, 4, 2}};
constexpr std::size_t kLarge = 50'000;
#else
const Layout kLayouts[] = {{1},       {2},      {3},    {4},       {5},    {6},    {7},
                           {8},       {1, 1},   {2, 2}, {1, 1, 1}, {3, 1}, {2, 3}, {1, 1, 1, 1, 1},
                           {2, 2, 2}, {1, 4, 2}};
constexpr std::size_t kLarge = 500'000;
#endif
const std::size_t kSizes[] = {0, 1, 17, 1000, 40'001};

std::vector<std::int64_t> shape_of(std::size_t count) { return {static_cast<std::int64_t>(count)}; }

// A value that tells rank and place apart, and sums exactly.
std::int64_t value(int rank, std::size_t i) { return (rank + 1) * 1000 + static_cast<std::int64_t>(i % 977); }

std::int64_t total(int size, std::size_t i) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += value(rank, i);
  return sum;
}

std::vector<std::int64_t> filled(int rank, std::size_t count) {
  std::vector<std::int64_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = value(rank, i);
  return data;
}

class Collectives : public testing::TestWithParam<Layout> {};

TEST_P(Collectives, AllReduceInPlaceAndOut) {
  run(GetParam(), [](Group& group) {
    for (const std::size_t count : kSizes) {
      const auto in = filled(group.rank(), count);
      std::vector<std::int64_t> out(count, -1);
      std::vector<std::int64_t> both = in;
      group.all_reduce(in.data(), out.data(), shape_of(count), DType::kInt64, ReduceOp::kSum);
      group.all_reduce(both.data(), both.data(), shape_of(count), DType::kInt64, ReduceOp::kSum);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], total(group.size(), i)) << i << " of " << count;
      ASSERT_EQ(both, out);
      ASSERT_EQ(in, filled(group.rank(), count));
    }
  });
}

TEST_P(Collectives, AverageAndPremultiplied) {
  run(GetParam(), [](Group& group) {
    for (const std::size_t count : kSizes) {
      std::vector<double> data(count, group.rank() + 1.0);
      group.all_reduce(data.data(), data.data(), shape_of(count), DType::kFloat64, ReduceOp::kAvg);
      for (const double x : data) ASSERT_DOUBLE_EQ(x, (group.size() + 1) / 2.0);
      std::vector<float> ones(count, 1);
      group.all_reduce(ones.data(), ones.data(), shape_of(count), DType::kFloat32, ReduceOp::kPremulSum,
                       group.rank() + 1.0);
      for (const float x : ones) ASSERT_EQ(x, static_cast<float>(group.size() * (group.size() + 1) / 2));
    }
  });
}

TEST_P(Collectives, ReduceAndBroadcastFromEveryRoot) {
  run(GetParam(), [](Group& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const std::size_t count : kSizes) {
        const auto in = filled(group.rank(), count);
        std::vector<std::int64_t> out(count, -1);
        group.reduce(in.data(), out.data(), shape_of(count), DType::kInt64, ReduceOp::kSum, root);
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i], group.rank() == root ? total(group.size(), i) : -1);
        }
        auto data = filled(group.rank(), count);
        group.broadcast(data.data(), shape_of(count), DType::kInt64, root);
        ASSERT_EQ(data, filled(root, count));
      }
    }
  });
}

// Blocks of rank r have count * (r + 1) elements where `uneven`.
std::size_t block(int rank, std::size_t count, bool uneven) {
  return uneven ? count * static_cast<std::size_t>(rank % 3) : count;
}

TEST_P(Collectives, AllGatherGatherScatter) {
  run(GetParam(), [](Group& group) {
    for (const bool uneven : {false, true}) {
      for (const std::size_t count : kSizes) {
        const auto own = filled(group.rank(), block(group.rank(), count, uneven));
        std::vector<std::vector<std::int64_t>> blocks;
        for (int r = 0; r < group.size(); ++r) blocks.emplace_back(block(r, count, uneven), -1);
        const auto targets = [&] {
          std::vector<Buffer> list;
          for (auto& b : blocks) list.push_back({b.data(), b.size()});
          return list;
        };
        group.all_gather({own.data(), own.size()}, targets(), DType::kInt64);
        for (int r = 0; r < group.size(); ++r)
          ASSERT_EQ(blocks[static_cast<std::size_t>(r)], filled(r, block(r, count, uneven)));
        const int root = group.size() - 1;
        for (auto& b : blocks) b.assign(b.size(), -1);
        group.gather({own.data(), own.size()}, targets(), DType::kInt64, root);
        if (group.rank() == root) {
          for (int r = 0; r < group.size(); ++r)
            ASSERT_EQ(blocks[static_cast<std::size_t>(r)], filled(r, block(r, count, uneven)));
        }
        std::vector<ConstBuffer> sources;
        for (const auto& b : blocks) sources.push_back({b.data(), b.size()});
        std::vector<std::int64_t> mine(own.size(), -1);
        group.scatter(sources, {mine.data(), mine.size()}, DType::kInt64, root);
        ASSERT_EQ(mine, own);
      }
    }
  });
}

TEST_P(Collectives, ReduceScatter) {
  run(GetParam(), [](Group& group) {
    for (const bool uneven : {false, true}) {
      for (const std::size_t count : kSizes) {
        std::vector<std::vector<std::int64_t>> blocks;
        for (int r = 0; r < group.size(); ++r) blocks.push_back(filled(group.rank(), block(r, count, uneven)));
        std::vector<ConstBuffer> sources;
        for (const auto& b : blocks) sources.push_back({b.data(), b.size()});
        std::vector<std::int64_t> out(block(group.rank(), count, uneven), -1);
        group.reduce_scatter(sources, {out.data(), out.size()}, DType::kInt64, ReduceOp::kSum);
        for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], total(group.size(), i));
      }
    }
  });
}

TEST_P(Collectives, AllToAll) {
  run(GetParam(), [](Group& group) {
    for (const std::size_t count : kSizes) {
      // Rank r sends count * ((r + j) % 3) elements to j.
      const auto amount = [&](int from, int to) { return count * static_cast<std::size_t>((from + to) % 3); };
      std::vector<std::vector<std::int64_t>> out;
      std::vector<std::vector<std::int64_t>> in;
      std::vector<ConstBuffer> sources;
      std::vector<Buffer> targets;
      for (int j = 0; j < group.size(); ++j) {
        out.push_back(filled(group.rank() * 100 + j, amount(group.rank(), j)));
        in.emplace_back(amount(j, group.rank()), -1);
      }
      for (auto& b : out) sources.push_back({b.data(), b.size()});
      for (auto& b : in) targets.push_back({b.data(), b.size()});
      group.all_to_all(sources, targets, DType::kInt64);
      for (int j = 0; j < group.size(); ++j) {
        ASSERT_EQ(in[static_cast<std::size_t>(j)], filled(j * 100 + group.rank(), amount(j, group.rank())));
      }
    }
  });
}

TEST_P(Collectives, MessagesWithTagsAndAnySource) {
  if (world_size(GetParam()) == 1) GTEST_SKIP() << "needs two ranks";
  run(GetParam(), [](Group& group) {
    const int next = (group.rank() + 1) % group.size();
    const int last = (group.rank() + group.size() - 1) % group.size();
    for (const std::size_t count : {std::size_t{0}, std::size_t{5}, std::size_t{100'000}}) {
      const auto first = filled(group.rank(), count);
      const auto second = filled(group.rank() + 50, count);
      std::vector<std::int64_t> a(count), b(count);
      Call async;
      async.async = true;
      // Received in the other order of tags than sent.
      const auto s1 = group.send({first.data(), count}, DType::kInt64, next, 1, async);
      const auto s2 = group.send({second.data(), count}, DType::kInt64, next, 2, async);
      const auto r2 = group.recv({b.data(), count}, DType::kInt64, last, 2, async);
      const auto r1 = group.recv({a.data(), count}, DType::kInt64, -1, 1, async);
      for (const auto& handle : {s1, s2, r1, r2}) handle->wait();
      ASSERT_EQ(a, filled(last, count));
      ASSERT_EQ(b, filled(last + 50, count));
      ASSERT_EQ(r1->source(), last);
      group.barrier();  // any source: the next round's messages must not come in early
    }
  });
}

// Of a few bytes and of many; taken, refused before and after they come, and left alone.
TEST_P(Collectives, Offers) {
  if (world_size(GetParam()) == 1) GTEST_SKIP() << "needs two ranks";
  run(GetParam(), [](Group& group) {
    const int next = (group.rank() + 1) % group.size();
    const int last = (group.rank() + group.size() - 1) % group.size();
    for (const std::size_t count : {std::size_t{3}, std::size_t{50'000}}) {
      const std::vector<std::int64_t> out = filled(group.rank(), count);
      std::vector<std::int64_t> in(count, -1);
      group.refuse(last, 2);
      group.barrier();
      std::vector<Group::Handle> offers;
      for (int tag = 1; tag <= 4; ++tag) {
        offers.push_back(group.offer({out.data(), count}, DType::kInt64, next, tag));
      }
      Call brief;
      brief.timeout = std::chrono::milliseconds(200);
      EXPECT_THROW(offers[0]->wait(brief.timeout), TimeoutError);  // of the waiting; the offer stands
      group.barrier();
      group.recv({in.data(), count}, DType::kInt64, last, 1);
      ASSERT_EQ(in, filled(last, count));
      group.refuse(last, 3);
      for (const int tag : {1, 2, 3}) offers[static_cast<std::size_t>(tag - 1)]->wait();
      EXPECT_FALSE(offers[3]->done());
      group.barrier();
      group.refuse(last, 4);
      offers[3]->wait();
      // What is no offer passes a refusal, which takes the first offer that comes after what is asked for before it.
      std::vector<std::int64_t> plain(count, -1);
      Call async;
      async.async = true;
      const auto first = group.recv({in.data(), count}, DType::kInt64, -1, 6, async);
      group.refuse(last, 6);
      group.barrier();
      const std::vector<std::int64_t> other = filled(group.rank() + 50, count);
      const auto taken = group.offer({out.data(), count}, DType::kInt64, next, 6);
      const auto refused = group.offer({out.data(), count}, DType::kInt64, next, 6);
      const auto sent = group.send({other.data(), count}, DType::kInt64, next, 6, async);
      const auto second = group.recv({plain.data(), count}, DType::kInt64, last, 6, async);
      for (const auto& handle : {first, second, taken, refused, sent}) handle->wait();
      ASSERT_EQ(in, filled(last, count));
      ASSERT_EQ(plain, filled(last + 50, count));
      group.barrier();
    }
    EXPECT_THROW(group.offer(ConstBuffer{}, DType::kInt64, next, 5), InvalidArgument);
    static const std::int64_t left = 0;
    group.offer({&left, 1}, DType::kInt64, next, 5);  // nobody takes it
  });
}

// Who leaves has its offers kept where they go, whether they are read, refused or left alone there.
TEST_P(Collectives, OffersOfARankThatLeaves) {
  if (world_size(GetParam()) == 1) GTEST_SKIP() << "needs two ranks";
  for (const std::size_t count : {std::size_t{3}, kLarge}) {
    const std::vector<std::int64_t> out = filled(7, count);
    run(GetParam(), [&](Group& group) {
      const std::unique_ptr<Group> left = group.split(0, group.rank(), "left");
      const int reader = left->size() - 1;
      if (left->rank() == 0) {
        std::vector<Group::Handle> offers;
        for (int tag = 1; tag <= 8; ++tag)
          offers.push_back(left->offer({out.data(), count}, DType::kInt64, reader, tag));
        left->push_offers();
        for (const auto& offer : offers) offer->wait();
        left->shutdown();
        group.barrier();
      } else {
        // While they come, and after their owner has left.
        const auto read = [&](int tag) {
          std::vector<std::int64_t> in(count, -1);
          left->recv({in.data(), count}, DType::kInt64, 0, tag);
          ASSERT_EQ(in, out);
        };
        if (left->rank() == reader) {
          read(2);
          left->refuse(0, 3);
          read(1);
        }
        group.barrier();
        if (left->rank() == reader) {
          left->refuse(0, 6);
          for (const int tag : {8, 5, 4}) read(tag);
          EXPECT_EQ(left->error(), nullptr);
        }
      }
    });
  }
}

// In the middle of its data, too.
TEST_P(Collectives, OffersToARankThatLeaves) {
  if (world_size(GetParam()) == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<std::int64_t> out = filled(7, 50'000);
  const std::vector<std::int64_t> large = filled(7, 10'000'000);
  std::atomic<int> withdrawn = 0;
  run(GetParam(), [&](Group& group) {
    const std::unique_ptr<Group> left = group.split(0, group.rank(), "left");
    if (left->rank() == 0) {
      const int reader = left->size() - 1;
      const auto taken = left->offer({large.data(), large.size()}, DType::kInt64, reader, 2);
      const auto offer = left->offer({out.data(), out.size()}, DType::kInt64, reader, 1);
      for (const auto& handle : {taken, offer}) handle->wait();  // throws if it ended with an error
      EXPECT_EQ(left->error(), nullptr);
      withdrawn += 1;
    } else if (left->rank() == left->size() - 1) {
      Call async;
      async.async = true;
      std::vector<std::int64_t> in(large.size());
      left->recv({in.data(), in.size()}, DType::kInt64, 0, 2, async);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      left->shutdown();
    }
    group.barrier();
  });
  EXPECT_EQ(withdrawn, 1);
}

TEST_P(Collectives, ManyInFlight) {
  run(GetParam(), [](Group& group) {
    constexpr int kOperations = 40;
    std::vector<std::vector<float>> data;
    std::vector<Group::Handle> handles;
    Call async;
    async.async = true;
    for (int i = 0; i < kOperations; ++i) data.emplace_back(static_cast<std::size_t>(i * 251), static_cast<float>(i));
    for (auto& one : data) {
      handles.push_back(
          group.all_reduce(one.data(), one.data(), shape_of(one.size()), DType::kFloat32, ReduceOp::kSum));
      if (!handles.back()) handles.pop_back();
      handles.push_back(
          group.all_reduce(one.data(), one.data(), shape_of(one.size()), DType::kFloat32, ReduceOp::kMax, 1.0, async));
    }
    for (const auto& handle : handles) handle->wait();
    for (int i = 0; i < kOperations; ++i) {
      for (const float x : data[static_cast<std::size_t>(i)]) ASSERT_EQ(x, static_cast<float>(i * group.size()));
    }
  });
}

TEST_P(Collectives, Split) {
  run(GetParam(), [](Group& group) {
    const auto half = group.split(group.rank() % 2, -group.rank(), "half");  // in reverse order
    std::int64_t rank = group.rank();
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(half->size()));
    std::vector<Buffer> targets;
    for (auto& r : ranks) targets.push_back({&r, 1});
    half->all_gather({&rank, 1}, targets, DType::kInt64);
    for (std::size_t i = 1; i < ranks.size(); ++i) ASSERT_EQ(ranks[i], ranks[i - 1] - 2);
    ASSERT_EQ(group.split(-1, 0, "none"), nullptr);
  });
}

std::string layout_name(const testing::TestParamInfo<Layout>& info) {
  std::string name = "hosts";
  for (const int ranks : info.param) name += "_" + std::to_string(ranks);
  return name;
}

INSTANTIATE_TEST_SUITE_P(Layouts, Collectives, testing::ValuesIn(kLayouts), layout_name);

// Results that are written past the caches, at any alignment; slots, too, once that has been tried.
TEST(LargeMessages, ExceedTheCaches) {
  std::size_t count = 100'003;  // per rank
  while (!exceeds_caches(6 * count * sizeof(std::int64_t)) && count < 8'000'000) count *= 2;
  run({2}, [count](Group& group) {
    const auto own = filled(group.rank(), count);
    for (const std::size_t shift : {0U, 1U, 0U, 1U}) {
      std::vector<std::int64_t> all(shift + 2 * count + 1, -1);
      group.all_gather({own.data(), count}, {{all.data() + shift, count}, {all.data() + shift + count, count}},
                       DType::kInt64);
      for (int rank = 0; rank < 2; ++rank) {
        const auto* first = all.data() + shift + static_cast<std::size_t>(rank) * count;
        ASSERT_EQ(std::vector(first, first + count), filled(rank, count));
      }
      ASSERT_EQ(all.back(), -1);
      std::vector<std::int64_t> sums(shift + count + 1, -1);
      group.reduce_scatter({{own.data(), count}, {own.data(), count}}, {sums.data() + shift, count}, DType::kInt64,
                           ReduceOp::kSum);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(sums[shift + i], total(2, i));
      ASSERT_EQ(sums.back(), -1);
      auto data = filled(group.rank(), 2 * count + shift);
      group.broadcast(data.data() + shift, shape_of(2 * count), DType::kInt64, 1);
      const auto expected = filled(1, 2 * count + shift);
      ASSERT_TRUE(std::equal(data.begin() + static_cast<std::ptrdiff_t>(shift), data.end(),
                             expected.begin() + static_cast<std::ptrdiff_t>(shift)));
    }
  });
}

// Same bits on all ranks, in all runs, for every algorithm; floats whose sum depends on the order.
TEST(Determinism, SameBitsEverywhere) {
  const auto bits_of = [](const Layout& layout, const std::string& algorithm, bool strict) {
    std::vector<float> result;
    std::mutex mutex;
    GroupOptions options = quick_options();
    options.algorithm = algorithm;
    options.strict = strict;
    run(
        layout,
        [&](Group& group) {
          std::vector<float> data(30'011);
          for (std::size_t i = 0; i < data.size(); ++i) {
            data[i] = static_cast<float>(group.rank() + 1) * 1e-3F * static_cast<float>(i * i % 7919) +
                      1.0F / static_cast<float>(i + 3);
          }
          group.all_reduce(data.data(), data.data(), shape_of(data.size()), DType::kFloat32, ReduceOp::kSum);
          const std::lock_guard lock(mutex);
          if (result.empty()) result = data;
          ASSERT_EQ(result, data) << "rank " << group.rank();
        },
        options);
    return result;
  };
  for (const char* algorithm : {"direct", "ring", "recursive_doubling"}) {
    for (const Layout& layout : {Layout{1, 1, 1}, Layout{2, 2}, Layout{2, 3, 1}}) {
      EXPECT_EQ(bits_of(layout, algorithm, false), bits_of(layout, algorithm, false)) << algorithm;
    }
  }
  // Where ring and doubling are excluded, chunk and algorithm change nothing.
  EXPECT_EQ(bits_of({1, 1, 1}, "auto", true), bits_of({1, 1, 1}, "direct", false));
  EXPECT_EQ(bits_of({4}, "one_shot", false), bits_of({4}, "two_shot", false));
  EXPECT_EQ(bits_of({4}, "auto", false), bits_of({1, 1, 1, 1}, "direct", false));
}

TEST(WrongInput, IsRefusedBeforeAnythingIsSent) {
  run({2}, [](Group& group) {
    float x = 1;
    const std::vector<std::int64_t> one{1};
    EXPECT_THROW(group.broadcast(&x, one, DType::kFloat32, 2), InvalidArgument);
    EXPECT_THROW(group.broadcast(nullptr, one, DType::kFloat32, 0), InvalidArgument);
    EXPECT_THROW(group.all_reduce(&x, &x, one, DType::kFloat8, ReduceOp::kSum), InvalidArgument);
    EXPECT_THROW(group.all_reduce(&x, &x, one, DType::kFloat32, ReduceOp::kBand), InvalidArgument);
    EXPECT_THROW(group.all_gather({&x, 1}, {{&x, 1}}, DType::kFloat32), InvalidArgument);
    EXPECT_THROW(group.send({&x, 1}, DType::kFloat32, group.rank(), 0), InvalidArgument);

    // Memory that is overwritten before it is read.
    std::vector<float> memory(8);
    float* at = memory.data();
    const std::vector<std::int64_t> four{4};
    EXPECT_THROW(group.all_reduce(at, at + 1, four, DType::kFloat32, ReduceOp::kSum), InvalidArgument);
    if (group.rank() == 0) {
      EXPECT_THROW(group.reduce(at + 1, at, four, DType::kFloat32, ReduceOp::kSum, 0), InvalidArgument);
    }
    EXPECT_THROW(group.all_gather({at + 6, 2}, {{at, 2}, {at + 1, 2}}, DType::kFloat32), InvalidArgument);
    const std::size_t other = group.rank() == 0 ? 2 : 0;
    EXPECT_THROW(group.all_gather({at + other, 2}, {{at, 2}, {at + 2, 2}}, DType::kFloat32), InvalidArgument);
    EXPECT_THROW(group.reduce_scatter({{at, 2}, {at + 2, 2}}, {at + 1, 2}, DType::kFloat32, ReduceOp::kSum),
                 InvalidArgument);
    EXPECT_THROW(group.all_to_all({{at, 2}, {at + 2, 2}}, {{at + 2, 2}, {at, 2}}, DType::kFloat32), InvalidArgument);
    group.all_gather({at, 2}, {{at + 4, 2}, {at + 4, 2}}, DType::kFloat32);
    group.all_reduce(&x, &x, one, DType::kFloat32, ReduceOp::kSum);  // and the group still works
    EXPECT_EQ(x, 2);
  });
}

}  // namespace
}  // namespace smdp::test
