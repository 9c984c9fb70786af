// What the header of the gradient reducer promises beyond means: deadlines, threads, an abort in the middle, results
// that no measurement has a say in, nothing lost of gradients that are not there in every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "smdp/error.h"
#include "smdp/gradient_reducer.h"

namespace smdp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

const Layout kLayouts[] = {{2}, {1, 1}, {2, 2}};

std::vector<Gradient> gradients_of(std::size_t number, std::size_t count) {
  std::vector<Gradient> gradients;
  for (std::size_t i = 0; i < number; ++i) gradients.push_back({"w" + std::to_string(i), count, DType::kFloat32});
  return gradients;
}

float value(std::size_t index, int rank, std::size_t place) {
  return std::sin(static_cast<float>(1 + place + 1000 * index) * (1.0F + 0.37F * static_cast<float>(rank)));
}

std::vector<float> values(std::size_t index, int rank, std::size_t count) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = value(index, rank, i);
  return result;
}

void expect_mean(const std::vector<float>& mean, std::size_t index, int size) {
  for (std::size_t i = 0; i < mean.size(); ++i) {
    float sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += value(index, rank, i);
    ASSERT_NEAR(mean[i], sum / static_cast<float>(size), 1e-5F) << index << " at " << i;
  }
}

class Promises : public testing::TestWithParam<Layout> {};

// The time that backward takes is this rank's own.
TEST_P(Promises, NoDeadlineBeforeBackwardIsOver) {
  GroupOptions options = quick_options();
  options.timeout = milliseconds(800);
  run(
      GetParam(),
      [](Group& group) {
        GradientReducer reducer(group, gradients_of(2, 100'000), {});
        for (int number = 0; number < 2; ++number) {
          std::vector<float> first = values(0, group.rank(), 100'000);
          std::vector<float> second = values(1, group.rank(), 100'000);
          reducer.ready(1, second.data());
          std::this_thread::sleep_for(milliseconds(1300));
          reducer.ready(0, first.data());
          reducer.finish();
          reducer.wait();
          expect_mean(first, 0, group.size());
        }
      },
      options);
}

TEST_P(Promises, WhoNeverFinishesMeetsTheOthersDeadline) {
  GroupOptions options = quick_options();
  options.timeout = milliseconds(800);
  const auto body = [](Group& group) {
    GradientReducer reducer(group, gradients_of(1, 1000), {});
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(2500));
      return;
    }
    std::vector<float> data = values(0, group.rank(), 1000);
    reducer.ready(0, data.data());
    const auto begin = steady_clock::now();
    reducer.finish();
    EXPECT_THROW(reducer.wait(), TimeoutError);
    EXPECT_GT(steady_clock::now() - begin, milliseconds(700));
    EXPECT_LT(steady_clock::now() - begin, milliseconds(2400));
  };
  EXPECT_THROW(run(GetParam(), body, options), Error);  // rank 1 finds its job closed
}

TEST_P(Promises, ThreadsMayHandOverGradients) {
  run(GetParam(), [](Group& group) {
    constexpr std::size_t kNumber = 64;
    GradientReducer reducer(group, gradients_of(kNumber, 3001), {});
    for (int number = 0; number < 3; ++number) {
      std::vector<std::vector<float>> data;
      for (std::size_t i = 0; i < kNumber; ++i) data.push_back(values(i, group.rank(), 3001));
      std::vector<std::thread> threads;
      for (std::size_t part = 0; part < 4; ++part) {
        threads.emplace_back([&, part] {
          for (std::size_t i = part; i < kNumber; i += 4) reducer.ready(i, data[i].data());
        });
      }
      for (std::thread& thread : threads) thread.join();
      reducer.finish();
      // One by one, from the front, and not all of them.
      for (const std::size_t i : {0U, 1U, 40U, 13U}) {
        reducer.wait(i);
        expect_mean(data[i], i, group.size());
      }
      reducer.wait();
      for (std::size_t i = 0; i < kNumber; ++i) expect_mean(data[i], i, group.size());
    }
  });
}

TEST_P(Promises, AnAbortEndsTheStepEverywhere) {
  try {
    run(GetParam(), [](Group& group) {
      GradientReducer reducer(group, gradients_of(4, 50'000), {});
      std::vector<std::vector<float>> data;
      for (std::size_t i = 0; i < 4; ++i) data.push_back(values(i, group.rank(), 50'000));
      reducer.ready(3, data[3].data());
      reducer.ready(2, data[2].data());
      if (group.rank() == 0) {
        reducer.abort("the user's loss was no number");
        EXPECT_THROW(reducer.ready(1, data[1].data()), ClosedError);
        return;
      }
      try {
        reducer.ready(1, data[1].data());
        reducer.ready(0, data[0].data());
        reducer.finish();
        reducer.wait();
        ADD_FAILURE() << "the step went on";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("the user's loss was no number"), std::string::npos) << error.what();
      }
    });
  } catch (const Error&) {
    // The group of the job may end with its part.
  }
}

TEST_P(Promises, AClosedReducerThrowsWhateverIsAsked) {
  const auto body = [](Group& group) {
    GradientReducer reducer(group, gradients_of(2, 1000), {});
    std::vector<float> data = values(0, group.rank(), 1000);
    group.barrier();
    reducer.abort("a reason");
    EXPECT_THROW(reducer.ready(0, data.data()), ClosedError);
    EXPECT_THROW(reducer.finish(), ClosedError);
    EXPECT_THROW(reducer.finish(), ClosedError);
    EXPECT_THROW(reducer.wait(0), ClosedError);
    EXPECT_THROW(reducer.wait(), ClosedError);
    EXPECT_THROW(reducer.then([](const auto&) {}, [](const auto&) {}), ClosedError);
  };
  run(GetParam(), body);
}

// A list of gradients needs connections of its own, for which it must not wait where a rank never comes.
TEST_P(Promises, NothingNewBeginsWithoutARank) {
  for (const bool is_failure : {true, false}) {
    for (const bool is_first : {true, false}) {  // before the others ask for it, or meanwhile
      const auto begin = steady_clock::now();
      try {
        run(GetParam(), [&](Group& group) {
          group.barrier();
          if (group.rank() == 1) {
            if (!is_first) std::this_thread::sleep_for(milliseconds(500));
            is_failure ? group.abort("the user's loss was no number") : group.shutdown();
            return;
          }
          if (is_first) std::this_thread::sleep_for(milliseconds(500));
          const std::string told = is_failure ? "the user's loss was no number" : "rank 1 (host";
          try {
            GradientReducer reducer(group, gradients_of(2, 1000), {});
            ADD_FAILURE() << "there is a reducer";
          } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(told), std::string::npos) << error.what();
          }
        });
      } catch (const Error&) {
        // The group of the job may end with its part.
      }
      EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(5));
    }
  }
}

TEST_P(Promises, AfterAnAbortWhoWaitsWritesNothing) {
  run(GetParam(), [](Group& group) {
    GradientReducer reducer(group, gradients_of(2, 1000), {});
    std::vector<std::vector<float>> data{values(0, group.rank(), 1000), values(1, group.rank(), 1000)};
    for (const std::size_t i : {1U, 0U}) reducer.ready(i, data[i].data());
    reducer.finish();
    std::this_thread::sleep_for(milliseconds(300));  // the means are there, and only have to be taken
    group.barrier();
    reducer.abort("a reason");
    const std::vector<float> sevens(1000, 7.0F);
    for (auto& one : data) one = sevens;
    EXPECT_THROW(reducer.wait(1), ClosedError);
    EXPECT_THROW(reducer.wait(), ClosedError);
    for (const auto& one : data) EXPECT_EQ(one, sevens);
  });
}

// Where fusion buffers end is a matter of what was measured: it must not show.
TEST_P(Promises, BuffersHaveNoSayInTheResult) {
  for (const Compression compression : {Compression::kNone, Compression::kFloat16, Compression::kBfloat16}) {
    run(GetParam(), [compression](Group& group) {
      std::vector<std::vector<float>> results;
      for (const std::size_t bytes : {std::size_t{1} << 14, std::size_t{1} << 16, std::size_t{25} << 20}) {
        GradientReducerOptions options;
        options.compression = compression;
        options.buffer_bytes = bytes;
        GradientReducer reducer(group, gradients_of(9, 5003), options);
        std::vector<float> all;
        for (int number = 0; number < 2; ++number) {
          all.clear();
          std::vector<std::vector<float>> data;
          for (std::size_t i = 0; i < 9; ++i) data.push_back(values(i, group.rank(), 5003));
          for (std::size_t i = 9; i-- > 0;) reducer.ready(i, data[i].data());
          reducer.finish();
          reducer.wait();
          for (const auto& one : data) all.insert(all.end(), one.begin(), one.end());
        }
        results.push_back(std::move(all));
      }
      EXPECT_EQ(results[0], results[1]) << name_of(compression);
      EXPECT_EQ(results[0], results[2]) << name_of(compression);
    });
  }
}

// A gradient that comes in every other step: what its codec has kept back is sent in between, and not lost.
TEST_P(Promises, NothingIsLostOfWhatIsNotThereInEveryStep) {
  for (const Compression compression : {Compression::kInt8, Compression::kTopK}) {
    run(GetParam(), [compression](Group& group) {
      constexpr std::size_t kCount = 2000;
      GradientReducerOptions options;
      options.compression = compression;
      options.topk_ratio = 0.1;
      GradientReducer reducer(group, gradients_of(3, kCount), options);
      std::vector<double> delivered(kCount);
      constexpr int kUses = 40;
      for (int number = 0; number < 2 * kUses + 60; ++number) {
        const bool is_used = number % 2 == 0;
        std::vector<std::vector<float>> data;
        for (std::size_t i = 0; i < 3; ++i) data.push_back(values(i, group.rank(), kCount));
        for (auto& one : data) {
          if (number >= 2 * kUses) std::fill(one.begin(), one.end(), 0.0F);  // what is left comes out
        }
        for (const std::size_t i : {2U, 1U, 0U}) {
          if (i != 1 || is_used) reducer.ready(i, data[i].data());
        }
        reducer.finish();
        reducer.wait();
        EXPECT_EQ(reducer.is_used(1), is_used);
        if (!is_used) continue;
        for (std::size_t j = 0; j < kCount; ++j) delivered[j] += data[1][j];
      }
      double missing = 0;
      double size = 0;
      for (std::size_t j = 0; j < kCount; ++j) {
        double sum = 0;
        for (int rank = 0; rank < group.size(); ++rank) sum += value(1, rank, j);
        missing += std::abs(delivered[j] - kUses * sum / group.size());
        size += std::abs(kUses * sum / group.size());
      }
      EXPECT_LT(missing, 0.001 * size) << name_of(compression);
    });
  }
}

// A step with an infinity is as if it had never been, for what comes late, too.
TEST_P(Promises, WhatIsLateOutlivesAStepThatDoesNotCount) {
  for (const Compression compression : {Compression::kInt8, Compression::kTopK}) {
    run(GetParam(), [compression](Group& group) {
      constexpr std::size_t kCount = 500;
      std::vector<std::vector<float>> delivered;
      for (const bool has_infinity : {false, true}) {
        GradientReducerOptions options;
        options.compression = compression;
        options.topk_ratio = 0.1;
        options.topk_momentum = compression == Compression::kTopK ? 0.9 : 0;
        options.buffer_bytes = kCount * sizeof(float);  // a buffer each
        GradientReducer reducer(group, gradients_of(2, kCount), options);
        std::vector<float> sum(kCount);
        for (int number = 0; number < 14; ++number) {
          const bool is_infinite = number == 7 || number == 8;
          if (is_infinite && !has_infinity) continue;
          std::vector<float> first = values(0, group.rank(), kCount);
          std::vector<float> second = values(1, group.rank(), kCount);
          if (is_infinite && group.rank() == 0) first[3] = std::numeric_limits<float>::infinity();
          const bool is_used = number % 4 == 0;
          if (is_used) reducer.ready(1, second.data());
          reducer.ready(0, first.data());
          reducer.finish();
          reducer.wait();
          if (!is_used || is_infinite) continue;
          for (std::size_t i = 0; i < kCount; ++i) sum[i] += second[i];
        }
        delivered.push_back(std::move(sum));
      }
      EXPECT_EQ(delivered[0], delivered[1]) << name_of(compression);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Promises, testing::ValuesIn(kLayouts),
                         [](const auto& info) { return "Hosts" + std::to_string(info.index); });

// From four hosts on algorithms differ in the order of a sum.
TEST(Promises4Hosts, BuffersHaveNoSayInTheResult) {
  run({1, 1, 1, 1}, [](Group& group) {
    std::vector<Gradient> gradients = gradients_of(2, 300'000);
    for (int i = 0; i < 3; ++i) gradients.push_back({"b" + std::to_string(i), 600, DType::kFloat32});
    std::vector<std::vector<float>> results;
    for (const std::size_t bytes : {std::size_t{1} << 14, std::size_t{25} << 20}) {
      GradientReducerOptions options;
      options.buffer_bytes = bytes;
      GradientReducer reducer(group, gradients, options);
      std::vector<std::vector<float>> data;
      for (std::size_t i = 0; i < gradients.size(); ++i) data.push_back(values(i, group.rank(), gradients[i].count));
      for (std::size_t i = gradients.size(); i-- > 0;) reducer.ready(i, data[i].data());
      reducer.finish();
      reducer.wait();
      std::vector<float> all;
      for (const auto& one : data) all.insert(all.end(), one.begin(), one.end());
      results.push_back(std::move(all));
    }
    EXPECT_EQ(results[0], results[1]);
  });
}

}  // namespace
}  // namespace smdp::test
