// Operations that begin before the values they read are there.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "smdp/error.h"
#include "smdp/gradient_reducer.h"

namespace smdp::test {
namespace {

using std::chrono::milliseconds;
using Shape = std::vector<std::int64_t>;

const Layout kLayouts[] = {{2}, {1, 1}, {2, 1}};

constexpr std::size_t kCount = 50'000;

class Arrivals : public testing::TestWithParam<Layout> {};

Call later(const std::shared_ptr<Arrival>& arrival) {
  Call call;
  call.async = true;
  call.arrival = arrival;
  return call;
}

TEST_P(Arrivals, ValuesComeFromAnotherThreadWhileOtherOperationsWait) {
  run(GetParam(), [](Group& group) {
    GradientCompressor compressor({});
    const int size = group.size();
    for (int step = 0; step < 3; ++step) {
      std::vector<float> sums(kCount);
      std::vector<float> means(kCount);
      const auto of_sums = std::make_shared<Arrival>();
      const auto of_means = std::make_shared<Arrival>();
      const auto sum =
          group.all_reduce(sums.data(), sums.data(), Shape{kCount}, DType::kFloat32, ReduceOp::kSum, 1, later(of_sums));
      const auto mean = compressor.all_reduce(group, 0, means.data(), kCount, DType::kFloat32, later(of_means));
      std::thread device([&] {
        std::this_thread::sleep_for(milliseconds(5 * group.rank()));
        sums.assign(kCount, static_cast<float>(group.rank() + step));
        of_sums->arrive();
        std::this_thread::sleep_for(milliseconds(5));
        means.assign(kCount, static_cast<float>(size * (group.rank() + step)));
        of_means->arrive();
      });
      // It comes after them, though its value is there.
      float after = 1;
      group.all_reduce(&after, &after, Shape{}, DType::kFloat32, ReduceOp::kSum, 1, {});
      EXPECT_EQ(after, static_cast<float>(size));
      EXPECT_TRUE(sum->done() && mean->done());
      sum->wait();
      mean->wait();
      const auto expected = static_cast<float>(size * (size - 1) / 2 + size * step);
      EXPECT_EQ(sums, std::vector<float>(kCount, expected));
      EXPECT_EQ(means, std::vector<float>(kCount, expected));
      device.join();
      compressor.end_step(true);
    }
  });
}

TEST_P(Arrivals, OneMayBeThatOfSeveralMeans) {
  run(GetParam(), [](Group& group) {
    GradientCompressor compressor({});
    std::vector<std::vector<float>> buffers(2, std::vector<float>(10));
    const auto arrival = std::make_shared<Arrival>();
    std::vector<Group::Handle> handles;
    for (std::size_t key = 0; key < 2; ++key) {
      handles.push_back(compressor.all_reduce(group, key, buffers[key].data(), 10, DType::kFloat32, later(arrival)));
    }
    for (auto& buffer : buffers) buffer.assign(10, 4.0F);
    arrival->arrive();
    arrival->arrive();  // the second does nothing
    for (const auto& handle : handles) handle->wait();
    EXPECT_EQ(buffers, std::vector<std::vector<float>>(2, std::vector<float>(10, 4.0F)));
    EXPECT_THROW(
        group.send({buffers[0].data(), 1}, DType::kFloat32, (group.rank() + 1) % group.size(), 0, later(arrival)),
        InvalidArgument);
  });
}

TEST_P(Arrivals, NoTimeCountsBefore) {
  GroupOptions options = quick_options();
  options.timeout = milliseconds(600);
  run(
      GetParam(),
      [](Group& group) {
        std::vector<double> value(10, 2.0);
        const auto arrival = std::make_shared<Arrival>();
        const auto sum =
            group.all_reduce(value.data(), value.data(), Shape{10}, DType::kFloat64, ReduceOp::kMax, 1, later(arrival));
        Call call;
        call.async = true;
        const auto behind = group.barrier(call);
        std::this_thread::sleep_for(milliseconds(1200));
        EXPECT_FALSE(sum->done());
        arrival->arrive();
        sum->wait();
        behind->wait();
        EXPECT_EQ(value, std::vector<double>(10, 2.0));
      },
      options);
}

// A blocking call sleeps where another thread wakes it.
TEST_P(Arrivals, ABlockingCallWaitsForThem) {
  run(GetParam(), [](Group& group) {
    float value = 0;
    Call call;
    call.arrival = std::make_shared<Arrival>();
    std::thread device([&] {
      std::this_thread::sleep_for(milliseconds(30 * (group.rank() % 2)));  // before it has begun, or while it waits
      value = 3;
      call.arrival->arrive();
    });
    group.all_reduce(&value, &value, Shape{}, DType::kFloat32, ReduceOp::kSum, 1, call);
    device.join();
    EXPECT_EQ(value, 3.0F * static_cast<float>(group.size()));
  });
}

TEST_P(Arrivals, WhereTheyNeverComeAllAreTold) {
  std::atomic<int> told = 0;
  const auto body = [&](Group& group) {
    std::vector<float> value(10, 1.0F);
    const auto arrival = std::make_shared<Arrival>();
    try {
      const auto sum =
          group.all_reduce(value.data(), value.data(), Shape{10}, DType::kFloat32, ReduceOp::kSum, 1, later(arrival));
      group.rank() == 1 ? group.abort("the device has failed") : arrival->arrive();
      sum->wait();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the device has failed"), std::string::npos) << error.what();
      ++told;
    }
    if (group.rank() == 1) arrival->arrive();  // too late, and no harm
  };
  EXPECT_THROW(run(GetParam(), body), Error);
  EXPECT_EQ(told, world_size(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Layouts, Arrivals, testing::ValuesIn(kLayouts),
                         [](const auto& info) { return "ranks" + std::to_string(info.index); });

TEST(Means, OfBoolAreRefused) {
  run({1}, [](Group& group) {
    GradientCompressor compressor({});
    bool value = true;
    EXPECT_THROW(compressor.all_reduce(group, 0, &value, 1, DType::kBool, {}), InvalidArgument);
  });
}

}  // namespace
}  // namespace smdp::test
