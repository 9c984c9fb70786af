// Means at the owners of shards, and parameters that travel back from them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <latch>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "ranks.h"
#include "smdp/error.h"
#include "smdp/gradient_reducer.h"

namespace smdp::test {
namespace {

using Values = std::vector<std::vector<float>>;

constexpr float kPoison = -12345;

constexpr std::size_t kCut = 8;  // gradients that may be cut; those after them must not be

std::vector<Gradient> model() {
  std::vector<Gradient> gradients;
  for (const std::size_t count : {1, 17, 4096, 0, 35'000, 250, 1000, 70'001, 2000, 3, 0, 1999, 33'000, 70'003, 1500}) {
    gradients.push_back({"layer" + std::to_string(gradients.size()), count, DType::kFloat32});
    gradients.back().is_whole = gradients.size() > kCut;
  }
  return gradients;
}

Values gradients_of(const std::vector<Gradient>& gradients, int rank, int step) {
  std::minstd_rand random(static_cast<unsigned>(1000 * step + rank + 1) * 40'503U);
  Values values;
  for (const Gradient& gradient : gradients) {
    for (float& x : values.emplace_back(gradient.count)) x = static_cast<float>(random()) / 1e9F - 1;
  }
  return values;
}

// absent: a gradient that did not come.
void step(GradientReducer& reducer, Values& values, std::size_t absent) {
  float empty = 0;
  for (std::size_t index = values.size(); index-- > 0;) {
    if (index != absent) reducer.ready(index, values[index].empty() ? &empty : values[index].data());
  }
  reducer.finish();
  reducer.wait();
}

// A mean of the buffer `number` at one of its elements.
float mean_at(const GradientReducer& reducer, std::size_t number, std::size_t element) {
  return static_cast<const float*>(reducer.means(number))[element];
}

// Calls visit(buffer, element, gradient, element of the gradient) for what this rank owns.
template <class Visit>
void for_each_owned(const GradientReducer& reducer, const Visit& visit) {
  const std::vector<ShardedBuffer>& buffers = reducer.sharded_buffers();
  for (std::size_t number = 0; number < buffers.size(); ++number) {
    for (const ShardedBuffer::Range& own : buffers[number].owned) {
      for (const ShardedBuffer::Member& member : buffers[number].members) {
        const std::size_t begin = std::max(own.begin, member.offset);
        const std::size_t end = std::min(own.end, member.offset + member.count);
        for (std::size_t k = begin; k < end; ++k) visit(number, k, member.index, k - member.offset);
      }
    }
  }
}

std::size_t owned_elements(const GradientReducer& reducer) {
  std::size_t sum = 0;
  for_each_owned(reducer, [&sum](auto...) { ++sum; });
  return sum;
}

class ShardedReducer : public testing::TestWithParam<std::tuple<Layout, ShardScope>> {
 protected:
  static GradientReducerOptions options(Compression compression = Compression::kNone) {
    GradientReducerOptions options;
    options.shards = std::get<1>(GetParam());
    options.compression = compression;
    options.buffer_bytes = 100'000;
    options.topk_ratio = 0.5;
    return options;
  }
  static GroupOptions direct() {
    GroupOptions options = quick_options();
    options.algorithm = "direct";  // on three hosts, small sums go another way otherwise
    return options;
  }
};

TEST_P(ShardedReducer, OwnersHaveTheBitsOfTheMean) {
  run(
      std::get<0>(GetParam()),
      [](Group& group) {
        const auto gradients = model();
        GradientReducerOptions whole = options();
        whole.shards = ShardScope::kNone;
        GradientReducer expected(group, gradients, whole);
        GradientReducer reducer(group, gradients, options());
        for (int number = 0; number < 4; ++number) {
          const std::size_t absent = number == 2 && group.rank() == 0 ? 4 : gradients.size();
          Values means = gradients_of(gradients, group.rank(), number);
          Values values = means;
          step(expected, means, absent);
          if (absent < means.size()) expected.read(absent, means[absent].data());
          step(reducer, values, absent);
          for_each_owned(reducer, [&](std::size_t buffer, std::size_t at, std::size_t gradient, std::size_t element) {
            ASSERT_EQ(mean_at(reducer, buffer, at), means[gradient][element]) << gradient << " at " << element;
          });
        }
      },
      direct());
}

TEST_P(ShardedReducer, OwnersCanHaveTheirMeansElsewhere) {
  for (const Compression compression : {Compression::kNone, Compression::kFloat16}) {
    run(std::get<0>(GetParam()), [compression](Group& group) {
      const auto gradients = model();
      GradientReducer expected(group, gradients, options(compression));
      GradientReducer reducer(group, gradients, options(compression));
      for (int number = 0; number < 2; ++number) {
        const std::size_t absent = number == 1 && group.rank() == 0 ? 4 : gradients.size();
        Values values = gradients_of(gradients, group.rank(), number);
        Values others = values;
        Values own(reducer.sharded_buffers().size());
        for (std::size_t buffer = 0; buffer < own.size(); ++buffer) {
          const ShardedBuffer& one = reducer.sharded_buffers()[buffer];
          if (!one.is_alone) continue;
          for (const ShardedBuffer::Range& range : one.owned)
            own[buffer].resize(own[buffer].size() + range.end - range.begin, kPoison);
          reducer.sum_into(one.members.front().index, own[buffer].data());
        }
        step(expected, others, absent);
        step(reducer, values, absent);
        std::vector<std::size_t> next(own.size(), 0);
        for_each_owned(reducer, [&](std::size_t buffer, std::size_t at, std::size_t gradient, std::size_t element) {
          const bool is_elsewhere = reducer.sharded_buffers()[buffer].is_alone && gradient != absent;
          const float mean = is_elsewhere ? own[buffer][next[buffer]++] : mean_at(reducer, buffer, at);
          ASSERT_EQ(mean, mean_at(expected, buffer, at)) << gradient << " at " << element;
        });
        EXPECT_THROW(reducer.sum_into(1, nullptr), InvalidArgument);  // it shares a buffer
      }
    });
  }
}

TEST_P(ShardedReducer, MeansCanBeAwaitedInTheMiddleOfAStep) {
  run(std::get<0>(GetParam()), [](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, options());
    const std::vector<ShardedBuffer>& buffers = reducer.sharded_buffers();
    for (int number = 0; number < 2; ++number) {
      Values values = gradients_of(gradients, group.rank(), number);
      EXPECT_FALSE(reducer.await_means(0));
      for (std::size_t index = values.size(); index-- > 1;) {
        float empty = 0;
        reducer.ready(index, values[index].empty() ? &empty : values[index].data());
      }
      std::size_t sent = 0;
      while (sent < buffers.size() && reducer.await_means(sent)) ++sent;
      ASSERT_LT(sent, buffers.size());  // this one lacks the gradient 0
      const auto& members = buffers[sent].members;
      EXPECT_TRUE(std::any_of(members.begin(), members.end(), [](const auto& member) { return member.index == 0; }));
      for (std::size_t buffer = 0; buffer < sent; ++buffer) EXPECT_TRUE(reducer.has_means(buffer));
      reducer.ready(0, values[0].data());
      for (; sent < buffers.size(); ++sent) EXPECT_TRUE(reducer.await_means(sent));
      reducer.finish();
      reducer.wait();
    }
  });
}

TEST_P(ShardedReducer, CompressionThatKeepsValuesHasMeansAfterTheStep) {
  run(std::get<0>(GetParam()), [](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, options(Compression::kInt8));
    const bool keeps = group.hosts().size() > 1;
    Values values = gradients_of(gradients, group.rank(), 0);
    float empty = 0;
    for (std::size_t index = values.size(); index-- > 0;) {
      reducer.ready(index, values[index].empty() ? &empty : values[index].data());
    }
    EXPECT_EQ(reducer.await_means(0), !keeps);
    EXPECT_EQ(reducer.has_means(0), !keeps);
    reducer.finish();
    std::vector<std::vector<float>> memory;
    std::vector<void*> data;
    for (const ShardedBuffer& buffer : reducer.sharded_buffers()) {
      data.push_back(memory.emplace_back(buffer.count).data());
    }
    if (keeps) {
      EXPECT_THROW(reducer.gather(data), Error);
    }
    reducer.wait();
    EXPECT_TRUE(reducer.has_means(0));
    const std::unique_ptr<ParameterGather> gather = reducer.gather(data);
    for (std::size_t number = data.size(); number-- > 0;) gather->ready(number);
    gather->wait();
  });
}

TEST_P(ShardedReducer, MeansOfAClosedGroupCannotBeAwaited) {
  const Layout& layout = std::get<0>(GetParam());
  std::latch are_created(world_size(layout));  // before, a constructor could meet the end of the group
  run(layout, [&are_created](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, options());
    are_created.arrive_and_wait();
    Values values = gradients_of(gradients, group.rank(), 0);
    if (group.rank() == group.size() - 1) {
      reducer.abort("a reason");
      return;
    }
    std::uint8_t flag = 0;
    EXPECT_THROW(reducer.or_over_ranks(&flag, 1), ClosedError);
    EXPECT_THROW(step(reducer, values, values.size()), ClosedError);
    EXPECT_FALSE(reducer.has_means(0));
    EXPECT_THROW(reducer.await_means(0), ClosedError);
  });
}

TEST_P(ShardedReducer, ParametersOnTheirWayAreAwaited) {
  run(std::get<0>(GetParam()), [](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, options());
    Values values = gradients_of(gradients, group.rank(), 0);
    step(reducer, values, gradients.size());
    std::vector<std::vector<float>> memory;
    std::vector<void*> data;
    for (const ShardedBuffer& buffer : reducer.sharded_buffers())
      data.push_back(memory.emplace_back(buffer.count).data());
    ASSERT_GT(data.size(), 2U);
    const std::unique_ptr<ParameterGather> gather = reducer.gather(data);
    const std::string last = std::to_string(data.size() - 1);
    const auto refuses = [&](const std::string& missing) {
      try {
        gather->wait(0);
        ADD_FAILURE() << "it ended";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("these are not ready yet: " + missing), std::string::npos)
            << error.what();
      }
    };
    gather->ready(0);
    refuses(last + ", ");  // nothing has been sent
    gather->ready(data.size() - 1);
    gather->wait(data.size() - 1);
    refuses(std::to_string(data.size() - 2));
    for (std::size_t number = data.size() - 1; number-- > 1;) gather->ready(number);
    gather->wait();
  });
}

TEST_P(ShardedReducer, ParametersComeBackFromTheirOwners) {
  run(std::get<0>(GetParam()), [](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, options());
    const std::vector<ShardedBuffer>& buffers = reducer.sharded_buffers();
    for (int number = 0; number < 3; ++number) {
      Values values = gradients_of(gradients, group.rank(), number);
      step(reducer, values, gradients.size());
      Values parameters;
      std::vector<void*> data;
      for (const ShardedBuffer& buffer : buffers) parameters.emplace_back(buffer.count, kPoison);
      for (std::vector<float>& one : parameters) data.push_back(one.data());
      const auto value = [number](std::size_t gradient, std::size_t element) {
        return static_cast<float>(1000 * number + static_cast<int>(gradient)) + static_cast<float>(element) / 1e5F;
      };
      for_each_owned(reducer, [&](std::size_t buffer, std::size_t at, std::size_t gradient, std::size_t element) {
        parameters[buffer][at] = value(gradient, element);
      });
      const std::unique_ptr<ParameterGather> gather = reducer.gather(data);
      EXPECT_THROW(gather->wait(0), Error);
      EXPECT_THROW(gather->is_there(buffers.size()), InvalidArgument);
      for (std::size_t buffer = 0; buffer < buffers.size(); ++buffer) gather->ready(buffer);
      gather->wait(buffers.size() - 1);
      gather->wait();
      for (std::size_t buffer = 0; buffer < buffers.size(); ++buffer) {
        EXPECT_TRUE(gather->is_there(buffer));
        for (const ShardedBuffer::Member& member : buffers[buffer].members) {
          for (std::size_t k = 0; k < member.count; ++k) {
            ASSERT_EQ(parameters[buffer][member.offset + k], value(member.index, k));
          }
        }
      }
    }
  });
}

TEST_P(ShardedReducer, ParametersTravelBeforeTheStepEnds) {
  run(std::get<0>(GetParam()), [](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, options());
    const std::vector<ShardedBuffer>& buffers = reducer.sharded_buffers();
    for (int number = 0; number < 3; ++number) {
      Values values = gradients_of(gradients, group.rank(), number);
      float empty = 0;
      Values parameters;
      std::vector<void*> data;
      for (const ShardedBuffer& buffer : buffers) parameters.emplace_back(buffer.count, kPoison);
      for (std::vector<float>& one : parameters) data.push_back(one.data());
      for (std::size_t i = 0; i < values.size(); ++i) reducer.ready(i, values[i].empty() ? &empty : values[i].data());
      EXPECT_THROW(reducer.gather(data), Error);
      EXPECT_THROW(reducer.has_means(buffers.size()), InvalidArgument);
      reducer.finish();
      const std::unique_ptr<ParameterGather> gather = reducer.gather(data);
      for (std::size_t buffer = 0; buffer < buffers.size(); ++buffer) {
        reducer.wait(buffers[buffer].members.front().index);
        EXPECT_TRUE(reducer.has_means(buffer));
        for (const ShardedBuffer::Range& own : buffers[buffer].owned) {
          for (std::size_t k = own.begin; k < own.end; ++k) parameters[buffer][k] = mean_at(reducer, buffer, k);
        }
        gather->ready(buffer);
      }
      gather->wait();
      for_each_owned(reducer, [&](std::size_t buffer, std::size_t at, std::size_t, std::size_t) {
        ASSERT_EQ(parameters[buffer][at], mean_at(reducer, buffer, at));
      });
      reducer.wait();
      for (const std::vector<float>& one : parameters) EXPECT_EQ(std::count(one.begin(), one.end(), kPoison), 0);
    }
  });
}

TEST_P(ShardedReducer, ShardsAreEqual) {
  const Layout& layout = std::get<0>(GetParam());
  run(layout, [](Group& group) {
    auto gradients = model();
    gradients.resize(kCut);
    GradientReducer reducer(group, gradients, options());
    std::vector<std::int64_t> owned(static_cast<std::size_t>(group.size()));
    const auto own = static_cast<std::int64_t>(owned_elements(reducer));
    std::vector<Buffer> targets;
    for (std::int64_t& one : owned) targets.push_back({&one, 1});
    group.all_gather({&own, 1}, targets, DType::kInt64);
    std::int64_t all = 0;
    for (const Gradient& gradient : gradients) all += static_cast<std::int64_t>(gradient.count);
    const bool is_world = options().shards == ShardScope::kWorld;
    std::int64_t sum = 0;
    for (const std::int64_t one : owned) sum += one;
    EXPECT_EQ(sum, is_world ? all : all * static_cast<std::int64_t>(group.hosts().size()));
    const auto owners = is_world ? group.size() : group.local_size();
    // A unit of 16 elements, and what members leave free, in each of the buffers.
    EXPECT_LE(std::abs(own - all / owners), static_cast<std::int64_t>(40 * reducer.sharded_buffers().size()));
  });
}

TEST_P(ShardedReducer, WholeGradientsHaveOneOwnerAndAreBalanced) {
  const Layout& layout = std::get<0>(GetParam());
  run(layout, [](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, options());
    std::vector<std::size_t> owned(gradients.size());
    for_each_owned(reducer,
                   [&owned](std::size_t, std::size_t, std::size_t gradient, std::size_t) { ++owned[gradient]; });
    std::int64_t own = 0;
    for (std::size_t i = kCut; i < gradients.size(); ++i) {
      EXPECT_TRUE(owned[i] == 0 || owned[i] == gradients[i].count) << i;
      own += static_cast<std::int64_t>(owned[i]);
    }
    std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
    std::vector<Buffer> targets;
    for (std::int64_t& one : all) targets.push_back({&one, 1});
    group.all_gather({&own, 1}, targets, DType::kInt64);
    const bool is_world = options().shards == ShardScope::kWorld;
    const auto copies = is_world ? 1 : static_cast<std::int64_t>(group.hosts().size());
    constexpr std::int64_t kAll = 2000 + 3 + 1999 + 33'000 + 70'003 + 1500;
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), std::int64_t{0}), copies * kAll);
    // The largest one has an owner of its own, and the others share the rest.
    const auto owners = static_cast<std::size_t>(is_world ? group.size() : group.local_size());
    EXPECT_EQ(*std::max_element(all.begin(), all.end()), owners > 1 ? 70'003 : kAll);
  });
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)  // slow, and more elements err in no other way
constexpr std::size_t kFewer = 10;
#else
constexpr std::size_t kFewer = 1;
#endif

// What a lossy type keeps back comes later, also where owners do not send the sum on.
TEST_P(ShardedReducer, CompressionLosesNothingInTheEnd) {
  // The largest error of a mean over all steps; that of one step of int8 is ten times as large.
  constexpr std::pair<Compression, float> kCases[] = {
      {Compression::kBfloat16, 0.01F}, {Compression::kInt8, 0.002F}, {Compression::kTopK, 0.2F}};
  for (const auto& [compression, most] : kCases) {
    run(std::get<0>(GetParam()), [compression = compression, most = most](Group& group) {
      auto gradients = model();
      for (Gradient& gradient : gradients) gradient.count /= kFewer;
      GradientReducer reducer(group, gradients, options(compression));
      Values sums;
      for (const Gradient& gradient : gradients) sums.emplace_back(gradient.count);
      constexpr int kSteps = 20;
      const Values same = gradients_of(gradients, group.rank(), 0);
      Values mean = gradients_of(gradients, 0, 0);
      for (int rank = 1; rank < group.size(); ++rank) {
        const Values other = gradients_of(gradients, rank, 0);
        for (std::size_t i = 0; i < mean.size(); ++i) {
          for (std::size_t k = 0; k < mean[i].size(); ++k) mean[i][k] += other[i][k];
        }
      }
      for (int number = 0; number < kSteps; ++number) {
        Values values = same;
        step(reducer, values, gradients.size());
        for_each_owned(reducer, [&](std::size_t buffer, std::size_t at, std::size_t gradient, std::size_t element) {
          sums[gradient][element] += mean_at(reducer, buffer, at) / kSteps;
        });
      }
      for_each_owned(reducer, [&](std::size_t, std::size_t, std::size_t gradient, std::size_t element) {
        const float expected = mean[gradient][element] / static_cast<float>(group.size());
        ASSERT_NEAR(sums[gradient][element], expected, most) << name_of(compression) << " " << gradient;
      });
    });
  }
}

TEST(ShardedReducerErrors, SayWhatIsWrong) {
  run({2}, [](Group& group) {
    GradientReducerOptions options;
    const std::vector<Gradient> gradients{{"weight", 100}};
    GradientReducer whole(group, gradients, options);
    EXPECT_THROW(whole.sharded_buffers(), Error);
    EXPECT_THROW(whole.gather({}), Error);
    options.shards = ShardScope::kWorld;
    GradientReducer reducer(group, gradients, options);
    EXPECT_THROW(reducer.gather({}), InvalidArgument);
    EXPECT_THROW(reducer.gather({nullptr}), InvalidArgument);
    EXPECT_THROW(reducer.means(1), InvalidArgument);
    GradientReducer empty(group, {{"nothing", 0}}, options);
    const std::unique_ptr<ParameterGather> gather = empty.gather({nullptr});
    gather->ready(0);
    gather->wait();
    std::vector<float> values(100, 1);
    EXPECT_THROW(reducer.ready(0, values.data(), 0, nullptr), InvalidArgument);
    reducer.ready(0, values.data());
    EXPECT_THROW(reducer.gather({values.data()}), Error);
    reducer.finish();
    reducer.wait();
    EXPECT_THROW(reducer.read(0, values.data()), Error);
    // Scopes that differ are found before anything is summed.
    options.shards = group.rank() == 0 ? ShardScope::kWorld : ShardScope::kNone;
    EXPECT_THROW(GradientReducer(group, gradients, options), MismatchError);
    options.shards = ShardScope::kWorld;
    std::vector<Gradient> others = gradients;
    others[0].is_whole = group.rank() == 0;
    EXPECT_THROW(GradientReducer(group, others, options), MismatchError);
  });
  EXPECT_THROW(parse_shard_scope("machine"), InvalidArgument);
  EXPECT_EQ(parse_shard_scope("host"), ShardScope::kHost);
}

#if defined(__SANITIZE_THREAD__)  // ten times as slow, and more ranks make no other races
const Layout kLayouts[] = {{2}, {2, 2}};
#else
const Layout kLayouts[] = {{1}, {2}, {3}, {1, 1}, {2, 2}, {1, 1, 1}};
#endif

INSTANTIATE_TEST_SUITE_P(Layouts, ShardedReducer,
                         testing::Combine(testing::ValuesIn(kLayouts),
                                          testing::Values(ShardScope::kWorld, ShardScope::kHost)),
                         [](const auto& info) {
                           std::string name = name_of(std::get<1>(info.param));
                           for (const int ranks : std::get<0>(info.param)) name += "_" + std::to_string(ranks);
                           return name;
                         });

}  // namespace
}  // namespace smdp::test
