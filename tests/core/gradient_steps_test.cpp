// Gradients from ops that run in any order: steps that overlap, steps that break off, and who gets the memory back.
#include "smdp/gradient_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <numeric>
#include <random>
#include <thread>

#include "ranks.h"
#include "smdp/error.h"

namespace smdp::test {
namespace {

const Layout kLayouts[] = {{1}, {2}, {1, 1}, {2, 1}};

std::vector<Gradient> model() {
  return {{"small", 10, DType::kFloat32},
          {"large", 200'000, DType::kFloat32},
          {"empty", 0, DType::kFloat32},
          {"middle", 5'000, DType::kFloat32}};
}

using Data = std::vector<std::vector<float>>;

// All of rank r's gradients in step s are s + r.
Data data_of(const std::vector<Gradient>& gradients, std::uint64_t step, int rank) {
  Data data;
  for (const Gradient& gradient : gradients) {
    data.emplace_back(gradient.count, static_cast<float>(step) + static_cast<float>(rank));
  }
  return data;
}

struct Means {
  std::vector<std::future<void>> futures;

  void ask(GradientSteps& steps, std::uint64_t step, std::size_t index) {
    auto promise = std::make_shared<std::promise<void>>();
    futures.push_back(promise->get_future());
    steps.mean(step, index,
               [promise](std::exception_ptr error) { error ? promise->set_exception(error) : promise->set_value(); });
  }
  // Throws the first error.
  void wait() {
    for (std::future<void>& future : futures) {
      ASSERT_EQ(future.wait_for(std::chrono::seconds(30)), std::future_status::ready);
      future.get();
    }
  }
};

class Steps : public testing::TestWithParam<Layout> {};

TEST_P(Steps, EachIsTheMean) {
  run(GetParam(), [](Group& group) {
    const auto gradients = model();
    GradientSteps steps(group, gradients, {});
    std::atomic<int> released = 0;
    for (std::uint64_t number = 1; number <= 5; ++number) {
      ASSERT_EQ(steps.begin(), number);
      Data data = data_of(gradients, number, group.rank());
      std::vector<std::size_t> order(data.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(group.rank() + 10 * number)));
      Means means;
      for (const std::size_t index : order) {
        steps.ready(number, index, data[index].data(), [&released] { ++released; });
        means.ask(steps, number, index);
      }
      steps.finish(number);
      means.wait();
      const float expected = static_cast<float>(number) + static_cast<float>(group.size() - 1) / 2;
      for (const auto& one : data) {
        for (const float x : one) ASSERT_FLOAT_EQ(x, expected);
      }
      // The last means are told before the memory is given back.
      while (released != static_cast<int>(4 * number)) std::this_thread::yield();
      Means late;
      late.ask(steps, number, 1);
      late.wait();
    }
  });
}

// The next step is begun, filled and finished before the first one ends; some ranks are faster than others.
TEST_P(Steps, NextOneMayComeEarly) {
  run(GetParam(), [](Group& group) {
    const auto gradients = model();
    GradientSteps steps(group, gradients, {});
    constexpr std::uint64_t kSteps = 12;
    std::vector<Data> all;
    for (std::uint64_t number = 1; number <= kSteps; ++number) all.push_back(data_of(gradients, number, group.rank()));
    Means means;
    for (std::uint64_t number = 1; number <= kSteps; ++number) {
      ASSERT_EQ(steps.begin(), number);
      for (std::size_t index = 0; index < gradients.size(); ++index) {
        steps.ready(number, index, all[number - 1][index].data(), {});
        means.ask(steps, number, index);
      }
      steps.finish(number);
      if (group.rank() == 0 && number % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    means.wait();
    for (std::uint64_t number = 1; number <= kSteps; ++number) {
      const float expected = static_cast<float>(number) + static_cast<float>(group.size() - 1) / 2;
      for (const auto& one : all[number - 1]) {
        for (const float x : one) ASSERT_FLOAT_EQ(x, expected);
      }
    }
  });
}

// A run that broke off before its first gradient is left late, in the middle of the one that was given its number.
TEST_P(Steps, LateLeave) {
  run(GetParam(), [](Group& group) {
    const auto gradients = model();
    GradientSteps steps(group, gradients, {});
    Data data = data_of(gradients, 1, group.rank());
    ASSERT_EQ(steps.begin(), 1U);
    ASSERT_EQ(steps.begin(), 1U);
    Means means;
    for (std::size_t index = 0; index < gradients.size(); ++index) {
      steps.ready(1, index, data[index].data(), {});
      if (index == 0) steps.leave(1);
      means.ask(steps, 1, index);
    }
    steps.finish(1);
    means.wait();
    steps.leave(1);
    for (const float x : data[0]) ASSERT_FLOAT_EQ(x, 1 + static_cast<float>(group.size() - 1) / 2);
  });
}

// An op of a step fails on one rank, which trains on all the same: an error everywhere, not a wrong mean.
TEST_P(Steps, BrokenStepClosesTheGroup) {
  run(GetParam(), [](Group& group) {
    const auto gradients = model();
    GradientSteps steps(group, gradients, {});
    Data data = data_of(gradients, 1, group.rank());
    std::atomic<int> released = 0;
    const std::uint64_t number = steps.begin();
    int taken = 0;
    Means means;
    means.ask(steps, number, 0);  // which the last rank does not have
    group.barrier();
    const auto hand_over = [&](std::size_t index) {
      try {
        steps.ready(number, index, data[index].data(), [&released] { ++released; });
        ++taken;
      } catch (const Error&) {  // the other rank was quicker
      }
    };
    hand_over(3);
    hand_over(1);
    if (group.rank() == group.size() - 1) {
      EXPECT_THROW(steps.begin(), Error);
    } else {
      hand_over(0);
      hand_over(2);
      try {
        steps.finish(number);
      } catch (const Error&) {
      }
    }
    try {
      means.wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("step 1 of these gradients was begun"), std::string::npos)
          << error.what();
    }
    EXPECT_THROW(steps.begin(), Error);
    while (released != taken) std::this_thread::yield();
  });
}

// The same where that rank begins no other: it is told that nothing more comes.
TEST_P(Steps, StepThatIsLeftClosesTheGroup) {
  run(GetParam(), [](Group& group) {
    GradientSteps steps(group, model(), {});
    Data data = data_of(model(), 1, group.rank());
    steps.leave(steps.begin());  // before its first gradient
    const std::uint64_t number = steps.begin();
    for (std::size_t index = 0; index < data.size(); ++index) steps.ready(number, index, data[index].data(), {});
    steps.finish(number);
    steps.leave(number);
    Means means;
    means.ask(steps, number, 1);
    means.wait();
    EXPECT_EQ(data[1][0], 1.0F + static_cast<float>(group.size() - 1) / 2);

    const std::uint64_t broken = steps.begin();
    group.barrier();
    Means never;
    try {
      steps.ready(broken, 1, data[1].data(), {});
      never.ask(steps, broken, 0);  // which never comes where the step breaks off
      if (group.rank() == group.size() - 1) {
        steps.leave(broken);
      } else {
        steps.finish(broken);
      }
      never.wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("step 2 of these gradients was begun"), std::string::npos)
          << error.what();
    }
  });
}

TEST_P(Steps, WrongCallsAreRefused) {
  run(GetParam(), [](Group& group) {
    GradientSteps steps(group, model(), {});
    Data data = data_of(model(), 1, 0);
    EXPECT_THROW(steps.ready(1, 0, data[0].data(), {}), InvalidArgument);  // not begun
    const std::uint64_t number = steps.begin();
    EXPECT_THROW(steps.ready(number, 4, data[0].data(), {}), InvalidArgument);
    steps.ready(number, 0, data[0].data(), {});
    EXPECT_THROW(steps.ready(number, 0, data[0].data(), {}), Error);
    steps.finish(number);
    Means means;
    means.ask(steps, number, 0);
    means.wait();
    EXPECT_EQ(GradientSteps::find(12'345'678), nullptr);
    EXPECT_EQ(GradientSteps::find(steps.id())->id(), steps.id());
    EXPECT_EQ(Group::find(group.id())->rank(), group.rank());
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Steps, testing::ValuesIn(kLayouts));

}  // namespace
}  // namespace smdp::test
