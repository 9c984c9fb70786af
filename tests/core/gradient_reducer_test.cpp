// The mean of gradients over ranks: any order of arrival, missing ones, all wire types, on one host and on several.
#include "smdp/gradient_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <future>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "cost/fusion_cost.h"
#include "fusion/explanation.h"
#include "fusion/layout.h"
#include "fusion/sending_order.h"
#include "ranks.h"
#include "sharding/equal_shards.h"
#include "smdp/error.h"

namespace smdp::test {
namespace {

#if defined(__SANITIZE_THREAD__)  // ten times as slow, and more ranks make no other races
const Layout kLayouts[] = {{2}, {1, 1}, {2, 2}};
constexpr std::size_t kLarge = 30'000;
constexpr std::size_t kSmall = 1'001;
#else
const Layout kLayouts[] = {{1}, {2}, {1, 1}, {2, 2}, {3, 1}, {1, 1, 1}};
constexpr std::size_t kLarge = 300'000;
constexpr std::size_t kSmall = 10'001;
#endif

std::vector<Gradient> model(std::size_t largest = 70'001) {
  std::vector<Gradient> gradients;
  const std::size_t counts[] = {1, 17, 4096, 0, largest / 2, 250, 1000, largest};
  for (std::size_t i = 0; i < std::size(counts); ++i) {
    gradients.push_back({"layer" + std::to_string(i), counts[i], DType::kFloat32});
  }
  return gradients;
}

using Data = std::vector<std::vector<float>>;

Data random_data(const std::vector<Gradient>& gradients, int rank, int step) {
  // Both are cheap where every access is checked. Streams of neighbouring seeds begin alike.
  std::minstd_rand random(static_cast<unsigned>(1000 * step + rank + 1) * 40'503U);
  random.discard(8);
  constexpr float kScale = 2.0F / static_cast<float>(std::minstd_rand::max());
  Data data;
  for (const Gradient& gradient : gradients) {
    data.emplace_back(gradient.count);
    for (float& x : data.back()) x = static_cast<float>(random()) * kScale - 1;
  }
  return data;
}

Data mean_over(const std::vector<Gradient>& gradients, int size, int step) {
  Data mean = random_data(gradients, 0, step);
  for (int rank = 1; rank < size; ++rank) {
    const Data other = random_data(gradients, rank, step);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      for (std::size_t j = 0; j < mean[i].size(); ++j) mean[i][j] += other[i][j];
    }
  }
  for (auto& one : mean) {
    for (float& x : one) x /= static_cast<float>(size);
  }
  return mean;
}

testing::AssertionResult are_near(const Data& left, const Data& right, float limit) {
  if (left.size() != right.size()) return testing::AssertionFailure() << "not as many gradients";
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].size() != right[i].size()) {
      return testing::AssertionFailure() << "gradient " << i << " has another size";
    }
    for (std::size_t j = 0; j < left[i].size(); ++j) {
      if (std::abs(left[i][j] - right[i][j]) <= limit) continue;  // NaN is not
      return testing::AssertionFailure() << "gradient " << i << " at " << j << ": " << left[i][j] << " and "
                                         << right[i][j];
    }
  }
  return testing::AssertionSuccess();
}

// Backward in an order of this rank's own.
void step(GradientReducer& reducer, Data& data, int seed, const std::vector<std::size_t>& absent = {}) {
  std::vector<std::size_t> order(data.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(seed)));
  float empty = 0;
  for (const std::size_t index : order) {
    if (std::find(absent.begin(), absent.end(), index) != absent.end()) continue;
    reducer.ready(index, data[index].empty() ? &empty : data[index].data());
  }
  reducer.finish();
  reducer.wait();
}

class Reducer : public testing::TestWithParam<Layout> {};

TEST_P(Reducer, MeanInAnyOrder) {
  run(GetParam(), [](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, {});
    for (int number = 0; number < 7; ++number) {
      Data data = random_data(gradients, group.rank(), number);
      step(reducer, data, 10 * number + group.rank());
      ASSERT_TRUE(are_near(data, mean_over(gradients, group.size(), number), 1e-5F));
    }
    EXPECT_EQ(reducer.stats().steps, 7U);
  });
}

TEST_P(Reducer, AbsentOnesCountAsZero) {
  run(GetParam(), [](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, {});
    for (int number = 0; number < 3; ++number) {
      Data data = random_data(gradients, group.rank(), number);
      // 2 comes from rank 0 only, 5 from nobody.
      step(reducer, data, group.rank(),
           group.rank() == 0 ? std::vector<std::size_t>{5} : std::vector<std::size_t>{2, 5});
      EXPECT_TRUE(reducer.is_used(2));
      EXPECT_FALSE(reducer.is_used(5));
      std::vector<float> two(gradients[2].count);
      reducer.read(2, two.data());
      std::vector<float> first = random_data(gradients, 0, number)[2];
      for (float& x : first) x /= static_cast<float>(group.size());
      ASSERT_TRUE(are_near({two}, {first}, 1e-6F));
    }
  });
}

// One that is left over from an earlier step belongs to the mean, and where all have only that, nobody has used it.
TEST_P(Reducer, LeftOversAreNoUse) {
  run(GetParam(), [](Group& group) {
    const auto gradients = model();
    GradientReducer reducer(group, gradients, {});
    for (int number = 0; number < 3; ++number) {
      Data data = random_data(gradients, group.rank(), number);
      float empty = 0;
      for (std::size_t i = 0; i < data.size(); ++i) {
        const bool is_used = i != 5 && (i != 7 || group.rank() == 0);
        reducer.ready(i, data[i].empty() ? &empty : data[i].data(), is_used);
      }
      reducer.finish();
      reducer.wait();
      EXPECT_TRUE(reducer.is_used(7));
      EXPECT_FALSE(reducer.is_used(5));
      ASSERT_TRUE(are_near(data, mean_over(gradients, group.size(), number), 1e-5F));
    }
  });
}

// Large gradients are summed where they lie, a place each rank knows only when its backward gets there.
TEST_P(Reducer, EachRankMayBeTheLast) {
  run(GetParam(), [](Group& group) {
    const std::vector<Gradient> gradients = {{"front", kLarge, DType::kFloat32}, {"back", kLarge, DType::kFloat32}};
    GradientReducer reducer(group, gradients, {});
    for (int number = 0; number < group.size(); ++number) {
      Data data = random_data(gradients, group.rank(), number);
      reducer.ready(1, data[1].data());
      if (number == group.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      reducer.ready(0, data[0].data());
      reducer.finish();
      reducer.wait();
      ASSERT_TRUE(are_near(data, mean_over(gradients, group.size(), number), 1e-5F));
    }
  });
}

// What the first step leaves behind comes later, too, though the order of gradients is known only then.
TEST_P(Reducer, CompressionLosesNothingOfTheFirstStep) {
  for (const Compression compression : {Compression::kInt8, Compression::kTopK}) {
    run(GetParam(), [compression](Group& group) {
      const auto gradients = model(kSmall);
      GradientReducerOptions options;
      options.compression = compression;
      options.topk_ratio = 0.1;
      GradientReducer reducer(group, gradients, options);
      Data sum = random_data(gradients, group.rank(), 0);
      step(reducer, sum, group.rank());
      for (int number = 1; number < 40; ++number) {
        Data data = sum;
        for (auto& one : data) std::fill(one.begin(), one.end(), 0.0F);
        step(reducer, data, number);
        for (std::size_t i = 0; i < sum.size(); ++i) {
          for (std::size_t j = 0; j < sum[i].size(); ++j) sum[i][j] += data[i][j];
        }
      }
      EXPECT_TRUE(are_near(sum, mean_over(gradients, group.size(), 0), 1e-4F)) << name_of(compression);
    });
  }
}

// Error feedback: what is lost in one step comes in a later one, so the mean over steps converges.
TEST_P(Reducer, CompressionLosesNothingForGood) {
  for (const Compression compression :
       {Compression::kFloat16, Compression::kBfloat16, Compression::kInt8, Compression::kTopK}) {
    run(GetParam(), [compression](Group& group) {
      const auto gradients = model(kSmall);
      GradientReducerOptions options;
      options.compression = compression;
      options.topk_ratio = 0.1;
      GradientReducer reducer(group, gradients, options);
      const int steps = compression == Compression::kTopK ? 60 : 20;
      const Data expected = mean_over(gradients, group.size(), 0);
      const Data own_data = random_data(gradients, group.rank(), 0);  // the same in every step
      Data sum;
      for (int number = 0; number < steps; ++number) {
        Data data = own_data;
        step(reducer, data, number);
        if (sum.empty()) {
          sum = data;
        } else {
          for (std::size_t i = 0; i < sum.size(); ++i) {
            for (std::size_t j = 0; j < sum[i].size(); ++j) sum[i][j] += data[i][j];
          }
        }
        // All ranks have the same bits.
        float checksum[2] = {0, 0};
        for (const auto& one : data) checksum[0] += std::accumulate(one.begin(), one.end(), 0.0F);
        checksum[1] = -checksum[0];
        const float own = checksum[0];
        group.all_reduce(checksum, checksum, std::vector<std::int64_t>{2}, DType::kFloat32, ReduceOp::kMax);
        ASSERT_EQ(own, checksum[0]);
        ASSERT_EQ(-own, checksum[1]);
      }
      double error = 0;
      double size = 0;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        for (std::size_t j = 0; j < sum[i].size(); ++j) {
          error += std::abs(sum[i][j] / static_cast<float>(steps) - expected[i][j]);
          size += std::abs(expected[i][j]);
        }
      }
      const double limit = compression == Compression::kTopK ? 0.15 : 0.004;
      EXPECT_LT(error, limit * size) << name_of(compression) << " on " << describe(GetParam());
    });
  }
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNotFinite[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};

// A step that is not finite is skipped by loss scaling: training must go on as if it had never been.
TEST_P(Reducer, NonFiniteStepLeavesNoTrace) {
  for (const Compression compression : {Compression::kInt8, Compression::kTopK}) {
    run(GetParam(), [compression](Group& group) {
      const auto gradients = model(kSmall);
      const auto train = [&](float bad) {
        GradientReducerOptions options;
        options.compression = compression;
        options.topk_momentum = compression == Compression::kTopK ? 0.9 : 0;
        GradientReducer reducer(group, gradients, options);
        Data last;
        for (int number = 0; number < 5; ++number) {
          if (number == 3 && !std::isfinite(bad)) {
            Data data = random_data(gradients, group.rank(), 99);
            if (group.rank() == group.size() - 1) data[4][123] = bad;
            step(reducer, data, number);
            EXPECT_FALSE(std::isfinite(data[4][123])) << bad;
          }
          last = random_data(gradients, group.rank(), number);
          step(reducer, last, number);
        }
        return last;
      };
      const Data expected = train(0);
      for (const float bad : kNotFinite) {
        EXPECT_EQ(train(bad), expected) << bad << " by " << name_of(compression) << " on " << describe(GetParam());
      }
    });
  }
}

TEST_P(Reducer, CastsPassOnWhatIsNotFinite) {
  for (const Compression compression : {Compression::kNone, Compression::kFloat16, Compression::kBfloat16}) {
    run(GetParam(), [compression](Group& group) {
      const auto gradients = model();
      GradientReducerOptions options;
      options.compression = compression;
      GradientReducer reducer(group, gradients, options);
      for (int number = 0; number < 2; ++number) {  // the second has another layout
        Data data = random_data(gradients, group.rank(), number);
        for (std::size_t i = 0; group.rank() == group.size() - 1 && i < std::size(kNotFinite); ++i) {
          data[4][100 + i] = data[1][i] = kNotFinite[i];
        }
        step(reducer, data, number);
        for (const auto* mean : {&data[4][100], &data[1][0]}) {
          EXPECT_EQ(mean[0], kInfinity) << name_of(compression);
          EXPECT_EQ(mean[1], -kInfinity) << name_of(compression);
          EXPECT_TRUE(std::isnan(mean[2])) << name_of(compression);
        }
        EXPECT_TRUE(std::isfinite(data[4][99]) && std::isfinite(data[4][103])) << name_of(compression);
      }
    });
  }
}

// Large gradients that all wait at the end of backward: whoever waits for single ones gets the first parameter's before
// the others', and all ranks the bits that they get in the usual order.
TEST_P(Reducer, FrontLayersComeFirstToWhoeverWaitsForThem) {
  run(GetParam(), [](Group& group) {
    std::vector<Gradient> gradients;
    for (int layer = 0; layer < 10; ++layer) gradients.push_back({std::to_string(layer), 300'000, DType::kFloat32});
    GradientReducer plain(group, gradients, {});
    GradientReducer reducer(group, gradients, {});
    const auto backward = [&gradients](GradientReducer& one, Data& data) {
      for (std::size_t index = gradients.size(); index-- > 0;) one.ready(index, data[index].data());
      one.finish();
    };
    Data given = random_data(gradients, group.rank(), 0);
    std::vector<std::size_t> places;  // of gradient 0 in the order of completion
    for (int number = 0; number < 6; ++number) {
      for (auto& one : given) one.back() = static_cast<float>(number + group.rank());  // no step is the one before
      Data expected = given;
      Data data = given;
      backward(plain, expected);
      plain.wait();
      backward(reducer, data);
      if (number % 2 == 0) {
        reducer.wait(0);
        reducer.wait();
      } else {
        std::promise<void> over;
        std::vector<std::size_t> order;
        reducer.then(
            [&order](const std::vector<std::size_t>& part) { order.insert(order.end(), part.begin(), part.end()); },
            [&over](const std::exception_ptr&) { over.set_value(); });
        over.get_future().wait();
        places.push_back(static_cast<std::size_t>(std::find(order.begin(), order.end(), 0U) - order.begin()));
      }
      for (std::size_t i = 0; i < data.size(); ++i) {
        EXPECT_EQ(std::memcmp(data[i].data(), expected[i].data(), 4 * data[i].size()), 0) << i;
      }
    }
    EXPECT_EQ(places.front(), gradients.size() - 1);
    // One rank has nothing to wait for.
    if (group.size() == 1) return;
    EXPECT_LT(*std::min_element(places.begin(), places.end()), gradients.size() - 1);
  });
}

// What compression keeps is looked at before: only address sanitizer sees this fail.
TEST_P(Reducer, MemoryMayGoOnceItsGradientIsThere) {
  run(GetParam(), [](Group& group) {
    const std::vector<Gradient> gradients{{"a", 3 * kLarge, DType::kFloat32}, {"b", 3 * kLarge, DType::kFloat32}};
    GradientReducerOptions options;
    options.compression = Compression::kInt8;
    GradientReducer reducer(group, gradients, options);
    for (int number = 0; number < 3; ++number) {
      Data data = random_data(gradients, group.rank(), number);
      for (const std::size_t index : {1U, 0U}) reducer.ready(index, data[index].data());
      reducer.finish();
      for (const std::size_t index : {0U, 1U}) {
        reducer.wait(index);
        data[index] = {};
      }
      reducer.wait();
    }
    EXPECT_EQ(reducer.stats().steps, 3U);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Reducer, testing::ValuesIn(kLayouts));

TEST(ReducerRegistration, DifferentListsAreRefusedEverywhere) {
  run({2, 1}, [](Group& group) {
    auto gradients = model();
    if (group.rank() == 1) gradients[2].count = 4097;
    try {
      const GradientReducer reducer(group, gradients, {});
      ADD_FAILURE();
    } catch (const MismatchError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("gradient 2"), std::string::npos) << text;
      EXPECT_NE(text.find("'layer2' float32[4097] on rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("'layer2' float32[4096] on rank 0"), std::string::npos) << text;
    }
  });
}

TEST(ReducerRegistration, ElementsCountWhateverTheShapeSays) {
  run({2, 1}, [](Group& group) {
    const std::vector<Gradient> gradients = {
        {"a", static_cast<std::size_t>(100 + group.rank() / 2), DType::kFloat32, "[4]"}};
    try {
      const GradientReducer reducer(group, gradients, {});
      ADD_FAILURE();
    } catch (const MismatchError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'a' float32[4] of 101 elements on rank 2"), std::string::npos) << text;
      EXPECT_NE(text.find("'a' float32[4] of 100 elements on rank 0"), std::string::npos) << text;
    }
  });
}

TEST(Reducer, NothingIsReadBeforeTheFirstStep) {
  run({1, 1}, [](Group& group) {
    const auto gradients = model(4'000'000);
    GradientReducer reducer(group, gradients, {});
    std::vector<float> out(gradients.back().count);
    EXPECT_THROW(reducer.read(gradients.size() - 1, out.data()), Error);
  });
}

TEST(ReducerRegistration, NamesOfAnyLengthAreWholeInTheMessage) {
  const std::string name = "layer" + std::string(1000, '2');
  run({3}, [&name](Group& group) {
    auto gradients = model();
    gradients[2].name = name;
    if (group.rank() == 2) gradients[2].count = 4097;
    try {
      const GradientReducer reducer(group, gradients, {});
      ADD_FAILURE();
    } catch (const MismatchError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'" + name + "' float32[4097] on rank 2"), std::string::npos) << text;
      EXPECT_NE(text.find("'" + name + "' float32[4096] on rank 0. All ranks must"), std::string::npos) << text;
    }
  });
}

TEST(ReducerRegistration, WrongOptionsAreRefused) {
  run({1}, [](Group& group) {
    GradientReducerOptions options;
    options.buffer_bytes = 0;
    EXPECT_THROW(GradientReducer(group, model(), options), InvalidArgument);
    EXPECT_THROW(GradientReducer(group, {{"steps", 1, DType::kInt64}}, {}), InvalidArgument);
    for (const float factor : kNotFinite) {
      options = {};
      options.factor = factor;
      EXPECT_THROW(GradientReducer(group, model(), options), InvalidArgument);
    }
    options = {};
    options.compression = Compression::kInt8;
    options.topk_momentum = 0.9;
    EXPECT_THROW(GradientReducer(group, model(), options), InvalidArgument);
    std::int64_t steps = 3;
    GradientCompressor compressor({});
    EXPECT_THROW(compressor.all_reduce(group, 0, &steps, 1, DType::kInt64, {}), InvalidArgument);
    EXPECT_THROW(parse_compression("zip"), InvalidArgument);
    GradientReducer reducer(group, model(), {});
    for (const double factor :
         {0.0, -1.0, static_cast<double>(kNotFinite[0]), static_cast<double>(kNotFinite[2]), 1e39, 1e-46}) {
      EXPECT_THROW(reducer.rescale(factor), InvalidArgument);
      EXPECT_THROW(compressor.rescale(factor), InvalidArgument);
    }
    float x = 0;
    reducer.ready(0, &x);
    EXPECT_THROW(reducer.ready(0, &x), Error);
    EXPECT_THROW(reducer.ready(99, &x), InvalidArgument);
    EXPECT_THROW(reducer.wait(), Error);
    reducer.finish();
    try {
      reducer.ready(1, &x);
      ADD_FAILURE() << "a gradient after the step's end was lost";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("was ready after finish()"), std::string::npos) << error.what();
    }
    reducer.wait();
  });
}

TEST(FusionLayout, EveryGradientHasAPlaceOfItsOwn) {
  std::vector<Gradient> gradients = model();
  gradients[1].dtype = DType::kFloat64;
  gradients[6].dtype = DType::kBfloat16;
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  const smdp::Layout layout = lay_out(gradients, order, {100'000, 90'000, 1000}, 150'000);
  std::vector<std::vector<bool>> taken;
  for (const PlannedBuffer& buffer : layout.buffers) taken.emplace_back(buffer.count);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Place place = layout.places[i];
    ASSERT_EQ(layout.buffers[place.buffer].dtype, gradients[i].dtype);
    ASSERT_EQ(place.offset * size_of(gradients[i].dtype) % 64, 0U);
    for (std::size_t j = 0; j < gradients[i].count; ++j) {
      ASSERT_FALSE(taken[place.buffer].at(place.offset + j));
      taken[place.buffer][place.offset + j] = true;
    }
  }
}

TEST(SendingOrder, TheFrontOvertakesWhatWaits) {
  std::vector<PlannedBuffer> buffers(6);
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].members = {11 - 2 * i, 10 - 2 * i};
  using Order = std::vector<std::size_t>;
  EXPECT_EQ(sending_order(buffers, 0), (Order{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(sending_order(buffers, 3), (Order{0, 1, 2, 5, 4, 3}));
  EXPECT_EQ(sending_order(buffers, 6), (Order{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(sending_order({}, 1), Order{});
}

// One slow step costs few others their overlap.
TEST(SendingOrder, WhatIsKeptFollowsTheNetwork) {
  std::size_t kept = next_kept(100, 20, 100);
  EXPECT_EQ(kept, 21U);
  EXPECT_EQ(next_kept(kept, 20, 100), 21U);
  int steps = 0;
  for (; kept < 100; ++steps) kept = next_kept(kept, kept, 100);
  EXPECT_LE(steps, 3);
}

// An embedding of 80 MB among small tensors gives every owner the same bytes.
TEST(EqualShards, SkewedListsAreBalanced) {
  for (const std::size_t owners : {2U, 3U, 8U, 100U, 512U}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{20'000'037}, std::size_t{136}, 1600 * owners}) {
      std::size_t least = count;
      std::size_t most = 0;
      std::size_t end = 0;
      for (std::size_t owner = 0; owner < owners; ++owner) {
        const Slice slice = slice_of(count, owners, owner, sizeof(float));
        ASSERT_EQ(slice.begin, end);
        end = slice.end;
        least = std::min(least, slice.size());
        most = std::max(most, slice.size());
      }
      EXPECT_EQ(end, count);
      EXPECT_LE((most - least) * sizeof(float), 64U) << count << " between " << owners;
      const double mean = static_cast<double>(count) / static_cast<double>(owners);
      if (mean * sizeof(float) >= 6400) {
        EXPECT_LE(static_cast<double>(most) / mean, 1.01);
      }
    }
  }
}

// The same of the buffers that such a list is laid out in, and of a whole step.
TEST(FusionLayout, SkewedListsAreBalanced) {
  std::vector<Gradient> gradients{{"embedding", 20'000'037, DType::kFloat32}};
  for (std::size_t i = 0; i < 200; ++i) gradients.push_back({"small", 100 + 37 * i, DType::kFloat32});
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  const std::size_t cap = std::size_t{25} << 20;
  const smdp::Layout layout = lay_out(gradients, order, cost::fusion_sizes({200e-6, 50e6}, 4, 1, cap), cap);
  constexpr std::size_t kOwners = 8;
  std::vector<std::size_t> bytes(kOwners);
  for (const PlannedBuffer& buffer : layout.buffers) {
    std::size_t least = buffer.count;
    std::size_t most = 0;
    for (std::size_t owner = 0; owner < kOwners; ++owner) {
      const std::size_t size = slice_of(buffer.count, kOwners, owner, sizeof(float)).size();
      least = std::min(least, size);
      most = std::max(most, size);
      bytes[owner] += size * sizeof(float);
    }
    EXPECT_LE((most - least) * sizeof(float), 64U);
  }
  const double mean = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0})) / kOwners;
  EXPECT_LE(static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) / mean, 1.01);
}

TEST(FusionCost, BuffersGrowWithLatencyAndBandwidth) {
  const std::size_t cap = std::size_t{25} << 20;
  const auto slow = cost::fusion_sizes({200e-6, 50e6}, 4, 1, cap);
  EXPECT_EQ(slow.usual, std::size_t{4} << 20);
  EXPECT_EQ(slow.smallest, std::size_t{512} << 10);
  const auto fast = cost::fusion_sizes({100e-6, 1e9}, 1, 1, cap);
  EXPECT_EQ(fast.usual, 5'000'000U);
  EXPECT_EQ(fast.smallest, 1'000'000U);
  EXPECT_EQ(cost::fusion_sizes({1e-3, 10e9}, 1, 1, cap).usual, cap);
  EXPECT_GT(cost::fusion_sizes({1e-3, 10e9}, 4096, 1, cap).usual, 5 * cap);
}

// A short look at a link may promise more than a rank can sum: two passes over a buffer inside a host, and one over its
// lane of it between hosts.
TEST(FusionCost, ABufferFlowsNoFasterThanItIsSummed) {
  const cost::Measured slow_sums{1e-3, 10e9, 6e9};
  EXPECT_EQ(cost::flow(slow_sums, 1, 1), 10e9);  // nothing to sum
  EXPECT_EQ(cost::flow(slow_sums, 1, 4), 6e9);
  EXPECT_EQ(cost::flow(slow_sums, 4, 1), 6e9);
  EXPECT_EQ(cost::flow(slow_sums, 4, 2), 4e9);
  EXPECT_EQ(cost::flow({1e-3, 1e9, 6e9}, 4, 2), 1e9);
  const std::size_t cap = std::size_t{1} << 30;
  EXPECT_EQ(cost::fusion_sizes(slow_sums, 4, 2, cap).usual, 200'000'000U);
  EXPECT_EQ(cost::fusion_sizes({1e-3, 10e9, 1e12}, 4, 2, cap).usual, 500'000'000U);
  // The wire of a lane is busy for less long, so an owner pays off sooner.
  EXPECT_LT(cost::exchange_sizes({20e-6, 10e9, 5e9}, 2, 1).least, cost::exchange_sizes({20e-6, 10e9}, 2, 1).least);
}

// 10 MB and little of float32, some float16, between two hosts of two ranks.
std::string explained(Compression compression, Algorithm algorithm = Algorithm::kDirect) {
  std::vector<Gradient> gradients{{"a", 2'500'000, DType::kFloat32}, {"b", 100, DType::kFloat32}};
  if (compression == Compression::kBfloat16) gradients.push_back({"c", 100, DType::kFloat16});
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  Reasons reasons;
  reasons.compression = compression;
  reasons.cap = std::size_t{25} << 20;
  reasons.hosts = reasons.lanes = 2;
  reasons.ranks = 4;
  reasons.algorithm = algorithm;
  reasons.measured = {250e-6, 2e9, 3e9, 1};
  reasons.sizes =
      cost::fusion_sizes(has_fixed_buffers(compression) ? cost::Measured{} : reasons.measured, 2, 2, reasons.cap);
  reasons.exchange = cost::exchange_sizes(reasons.measured, 2, 2);
  return explain(lay_out(gradients, order, reasons.sizes, reasons.cap), reasons);
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(Explanation, SaysWhatIsTrueOfEachWireType) {
  const std::string plain = explained(Compression::kNone);
  expect_parts(
      plain, {"2 gradients in 2 fusion buffers between 4 ranks on 2 hosts; compression between hosts: none.",
              "Measured: the smallest all_reduce takes 250 us, large ones 2000 MB/s, sums 3000 MB/s, so a buffer flows "
              "at 2000 MB/s. Buffers have at most 25.00 MB",
              "Between hosts, direct: every host owns a part of a chunk, at most 128 KiB; where they would be "
              "below 2944 bytes, fewer hosts own one; over one connection to each rank.",
              "1 gradient, 2 owners of 0.00 MB", "10.00 MB float32, 1 gradient, 4 owners of 2.50 MB"});
  const std::string cast = explained(Compression::kBfloat16);
  expect_parts(cast, {"Measured: ",
                      "Between hosts, float32 direct: every host owns a part of a chunk, at most 512 KiB before "
                      "encoding; over one connection",
                      "Between hosts, other dtypes direct: every host owns a part of a chunk, at most 128 KiB; where",
                      "1 gradient, 4 owners of 0.00 MB"});
  const std::string coded = explained(Compression::kInt8);
  expect_parts(coded, {"The loss of int8 compression depends on where buffers end, so measurements are not used. "
                       "Assumed: the smallest all_reduce takes 100 us, large ones 1000 MB/s",
                       "at most 512 KiB before encoding"});
  EXPECT_EQ(coded.find("Measured"), std::string::npos) << coded;
  EXPECT_EQ(coded.find("fewer hosts own one"), std::string::npos) << coded;
  expect_parts(explained(Compression::kNone, Algorithm::kRecursiveDoubling),
               {"recursive_doubling: each pair of hosts exchanges whole chunks, at most 1024 KiB"});
}

}  // namespace
}  // namespace smdp::test
