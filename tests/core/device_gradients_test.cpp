// Gradients on CUDA devices: gathered, averaged, brought back, in the order of streams. The driver is a stand-in
// (cuda/driver.cpp), whose memory the CPU cannot touch; on a GPU, tests/plugins/torch/process_group/test_cuda.py does
// the same.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "device/cuda_device.h"
#include "ranks.h"
#include "smdp/error.h"
#include "smdp/gradient_reducer.h"

namespace smdp::test {
namespace {

using Values = std::vector<float>;

// A framework: tensors on a device, and a stream that makes them, late.
class Framework {
 public:
  explicit Framework(int device) : number_(device), device_(std::make_shared<const cuda::Device>(device)) {
    const cuda::Device::Current current(*device_);
    driver().check(driver().create_stream(&stream_, 0), "stream");
  }
  Framework(const Framework&) = delete;
  Framework& operator=(const Framework&) = delete;
  ~Framework() {
    synchronize();
    driver().destroy_stream(stream_);
  }

  struct Tensor {
    explicit Tensor(const cuda::DevicePointer& device, std::size_t count)
        : host(std::max<std::size_t>(count, 1)),
          memory(device, host.size() * sizeof(float)),
          pinned(cuda::pin(device, reinterpret_cast<std::byte*>(host.data()), host.size() * sizeof(float))) {}
    void* data() const { return reinterpret_cast<void*>(memory.address()); }

    Values host;
    cuda::Memory memory;
    std::shared_ptr<void> pinned;
  };
  Tensor tensor(std::size_t count) const { return Tensor(device_, count); }

  std::vector<Tensor> tensors(const std::vector<Gradient>& gradients) const {
    std::vector<Tensor> made;
    for (const Gradient& gradient : gradients) made.push_back(tensor(gradient.count));
    return made;
  }

  // Enqueued, as a backward's kernels are; gives the event after it.
  cuda::Event write(Tensor& tensor, const Values& values) const {
    synchronize();  // `host` is free
    std::copy(values.begin(), values.end(), tensor.host.begin());
    copy(tensor, true);
    return cuda::Event(device_, stream_);
  }
  Values read(Tensor& tensor, std::size_t count) const {
    copy(tensor, false);
    synchronize();
    return {tensor.host.begin(), tensor.host.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  CudaStream stream() const { return {number_, stream_}; }

 private:
  const cuda::Driver& driver() const { return device_->driver(); }
  void synchronize() const { cuda::Event(device_, stream_).synchronize(); }
  void copy(Tensor& tensor, bool is_write) const {
    const cuda::Device::Current current(*device_);
    const std::size_t bytes = tensor.host.size() * sizeof(float);
    const cuda::Address address = tensor.memory.address();
    driver().check(is_write ? driver().copy_to_device(address, tensor.host.data(), bytes, stream_)
                            : driver().copy_to_host(tensor.host.data(), address, bytes, stream_),
                   "copy");
  }

  const int number_;
  cuda::DevicePointer device_;
  cuda::Handle stream_ = nullptr;
};

std::vector<Gradient> model() {
  std::vector<Gradient> gradients;
  for (const std::size_t count : {1, 17, 4096, 0, 35'000, 250, 1000, 120'001, 3, 3}) {
    gradients.push_back({"layer" + std::to_string(gradients.size()), count});
  }
  return gradients;
}

Values values_of(const Gradient& gradient, std::size_t index, int rank, int step) {
  std::minstd_rand random(static_cast<unsigned>(1 + rank + 10 * step + 100 * static_cast<int>(index)) * 40'503U);
  random.discard(8);
  Values values(gradient.count);
  for (float& x : values) x = static_cast<float>(random()) / static_cast<float>(std::minstd_rand::max()) - 0.5F;
  return values;
}

// Where a gradient of a rank is in a step; kAbsent: it has none.
constexpr int kHost = -1;
constexpr int kAbsent = -2;
using Places = std::function<int(std::size_t index, int rank, int step)>;

enum class Wait { kStream, kEach, kBlock, kThen };

struct Run {
  GradientReducerOptions options = {};
  Wait wait = Wait::kStream;
  int steps = 4;
};

// Means of each step, by gradient; those that this rank does not have are empty.
std::vector<std::vector<Values>> train(Group& group, const Places& places, const Run& how) {
  const std::vector<Gradient> gradients = model();
  GradientReducer reducer(group, gradients, how.options);
  const Framework devices[] = {Framework(0), Framework(1)};
  std::map<std::pair<std::size_t, int>, Framework::Tensor> tensors;
  std::vector<std::vector<Values>> means;
  for (int step = 0; step < how.steps; ++step) {
    std::vector<std::size_t> order(gradients.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(10 * step + group.rank())));
    std::vector<Values> host(gradients.size());
    for (const std::size_t index : order) {
      const int place = places(index, group.rank(), step);
      const Values values = values_of(gradients[index], index, group.rank(), step);
      if (place == kHost) {
        host[index] = values;
        float none = 0;
        reducer.ready(index, values.empty() ? &none : host[index].data());
      } else if (place != kAbsent) {
        const Framework& framework = devices[place];
        auto [tensor, _] = tensors.try_emplace({index, place}, framework.tensor(values.size()));
        const cuda::Event event = framework.write(tensor->second, values);
        reducer.ready(index, tensor->second.data(), place, event.handle());
      }
    }
    reducer.finish();
    const auto read = [&](std::size_t index) {
      const int place = places(index, group.rank(), step);
      if (place < 0) return host[index];
      return devices[place].read(tensors.at({index, place}), gradients[index].count);
    };
    means.emplace_back(gradients.size());
    switch (how.wait) {
      case Wait::kStream:
        reducer.wait(devices[0].stream());  // for those of the other device, too
        for (std::size_t index = 0; index < gradients.size(); ++index) {
          const int place = places(index, group.rank(), step);
          if (place == kHost) means.back()[index] = host[index];
          if (place >= 0) means.back()[index] = devices[0].read(tensors.at({index, place}), gradients[index].count);
        }
        break;
      case Wait::kEach:
        for (std::size_t index = 0; index < gradients.size(); ++index) {
          const int place = places(index, group.rank(), step);
          reducer.wait(index, devices[std::max(place, 0)].stream());
          if (place != kAbsent) means.back()[index] = read(index);
        }
        reducer.wait();
        break;
      case Wait::kBlock:
        reducer.wait();
        for (std::size_t index = 0; index < gradients.size(); ++index) {
          if (places(index, group.rank(), step) != kAbsent) means.back()[index] = read(index);
        }
        break;
      case Wait::kThen: {
        std::promise<void> over;
        reducer.then(
            [&](const std::vector<std::size_t>& indices) {
              for (const std::size_t index : indices) {
                if (places(index, group.rank(), step) != kAbsent) means.back()[index] = read(index);
              }
            },
            [&](const std::exception_ptr& error) { error ? over.set_exception(error) : over.set_value(); });
        over.get_future().get();
        break;
      }
    }
  }
  return means;
}

// Bit for bit what gradients in the host's memory give, for those that are compared.
void compare(const test::Layout& layout, const Places& places, const Run& how = {}) {
  run(layout, [&](Group& group) {
    const auto found = train(group, places, how);
    Run plain = how;
    plain.wait = Wait::kBlock;
    const auto expected = train(
        group, [&](std::size_t i, int rank, int step) { return places(i, rank, step) == kAbsent ? kAbsent : kHost; },
        plain);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      for (std::size_t i = 0; i < expected[step].size(); ++i) {
        ASSERT_EQ(found[step][i], expected[step][i]) << "step " << step << ", gradient " << i;
      }
    }
  });
  EXPECT_EQ(stand_in_left(), 0);
}

int on_one(std::size_t, int, int) { return 0; }

#if defined(__SANITIZE_THREAD__)
const test::Layout kLayouts[] = {{2}, {1, 1}};
#else
const test::Layout kLayouts[] = {{1}, {2}, {1, 1}, {2, 2}};
#endif

class DeviceGradients : public testing::TestWithParam<test::Layout> {};

TEST_P(DeviceGradients, AStreamWaitsForTheirMeans) { compare(GetParam(), on_one); }

TEST_P(DeviceGradients, ThoseOfTwoDevicesAndOfTheHostShareBuffers) {
  const Places mixed = [](std::size_t index, int rank, int step) {
    return static_cast<int>((index + static_cast<std::size_t>(rank + step)) % 4) - 2;  // some absent
  };
  compare(GetParam(), mixed);
  compare(GetParam(), mixed, {{}, Wait::kBlock});
  compare(GetParam(), mixed, {{}, Wait::kEach});
  compare(GetParam(), mixed, {{}, Wait::kThen});
}

TEST_P(DeviceGradients, Compressed) {
  for (const Compression compression : {Compression::kBfloat16, Compression::kInt8, Compression::kTopK}) {
    GradientReducerOptions options;
    options.compression = compression;
    options.topk_ratio = 0.1;
    compare(GetParam(), on_one, {options});
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DeviceGradients, testing::ValuesIn(kLayouts));

TEST(DeviceGradient, CrossesOncePerBuffer) {
  run({2}, [](Group& group) {
    std::vector<Gradient> gradients(40, Gradient{"w", 100});
    GradientReducer reducer(group, gradients, {});
    const Framework framework(0);
    std::vector<Framework::Tensor> tensors = framework.tensors(gradients);
    for (int step = 0; step < 3; ++step) {
      group.barrier();
      if (group.rank() == 0) stand_in_copies();
      group.barrier();
      for (std::size_t i = gradients.size(); i-- > 0;) reducer.ready(i, tensors[i].data(), 0, nullptr);
      reducer.finish();
      reducer.wait();
      group.barrier();
      if (group.rank() == 0) {
        const StandInCopies copies = stand_in_copies();
        EXPECT_EQ(copies.within, 80);  // of both ranks
        EXPECT_LE(copies.to_host, 12) << reducer.explain();
        EXPECT_EQ(copies.to_host % 2, 0);
      }
    }
  });
}

TEST(DeviceGradient, OneThatIsNotThereIsRefused) {
  run({2}, [](Group& group) {
    GradientReducer reducer(group, model(), {});
    float value = 0;
    for (const int device : {-1, 7}) {
      try {
        reducer.ready(0, &value, device, nullptr);
        ADD_FAILURE() << "device " << device;
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("no CUDA device " + std::to_string(device)), std::string::npos);
      }
    }
    reducer.ready(0, &value);  // nothing has happened
    reducer.finish();
    EXPECT_THROW(reducer.wait(CudaStream{7, nullptr}), InvalidArgument);
    reducer.wait();
  });
}

void hear_of_a_failed_copy(StandInFailure how, const Places& places) {
  run({2, 1}, [&](Group& group) {
    const std::vector<Gradient> gradients = model();
    GradientReducer reducer(group, gradients, {});
    const Framework framework(0);
    std::vector<Framework::Tensor> tensors = framework.tensors(gradients);
    group.barrier();
    if (group.rank() == 0) stand_in_fail(how);
    group.barrier();
    try {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const int place = places(i, group.rank(), 0);
        if (place == 0) reducer.ready(i, tensors[i].data(), 0, nullptr);
        if (place == kHost) reducer.ready(i, tensors[i].host.data());
      }
      reducer.finish();
      reducer.wait();
      ADD_FAILURE() << "rank " << group.rank() << " heard nothing";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << error.what();
    }
    group.barrier();
    stand_in_fail(StandInFailure::kNone);
  });
  EXPECT_EQ(stand_in_left(), 0);
}

TEST(DeviceGradient, AFailedCopyIsToldToAllRanks) {
  for (const StandInFailure how : {StandInFailure::kAtOnce, StandInFailure::kWhileItRuns}) {
    hear_of_a_failed_copy(how, [](std::size_t, int rank, int) { return rank == 0 ? 0 : kHost; });
    // The last one of each buffer is in the host's memory, or comes by finish().
    hear_of_a_failed_copy(how, [](std::size_t i, int rank, int) { return rank == 0 && i < 5 ? 0 : kHost; });
    hear_of_a_failed_copy(how, [](std::size_t i, int rank, int) { return rank != 0 ? kHost : i < 5 ? 0 : kAbsent; });
  }
}

// Rank 0's means do not come back to its device, when the others have theirs.
void hear_of_a_failed_return(const std::function<void(GradientReducer&)>& wait) {
  run({2, 1}, [&](Group& group) {
    const std::vector<Gradient> gradients = model();
    GradientReducer reducer(group, gradients, {});
    const Framework framework(0);
    std::vector<Framework::Tensor> tensors = framework.tensors(gradients);
    if (group.rank() == 0) stand_in_fail(StandInFailure::kOnTheWayBack);
    std::string text;
    for (int step = 0; step < 2; ++step) {
      try {
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          if (group.rank() == 0) {
            reducer.ready(i, tensors[i].data(), 0, nullptr);
          } else {
            reducer.ready(i, tensors[i].host.data());
          }
        }
        reducer.finish();
        wait(reducer);
        EXPECT_TRUE(group.rank() != 0 && step == 0) << "rank " << group.rank() << " in step " << step;
      } catch (const Error& error) {
        text = error.what();
        EXPECT_NE(text.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << text;
      }
    }
    EXPECT_FALSE(text.empty());
    reducer.abort("a second time");  // throws nothing
    group.barrier();
    stand_in_fail(StandInFailure::kNone);
  });
  EXPECT_EQ(stand_in_left(), 0);
}

TEST(DeviceGradient, AFailedReturnIsToldToAllRanks) {
  hear_of_a_failed_return([](GradientReducer& reducer) { reducer.wait(); });
  hear_of_a_failed_return([](GradientReducer& reducer) {
    reducer.wait(7);
    reducer.wait();
  });
  hear_of_a_failed_return([](GradientReducer& reducer) {
    std::promise<void> over;
    reducer.then([](const std::vector<std::size_t>&) {},
                 [&](const std::exception_ptr& error) { error ? over.set_exception(error) : over.set_value(); });
    over.get_future().get();
  });
}

TEST(DeviceGradient, AbortEndsCopies) {
  run({1}, [](Group& group) {
    GradientReducer reducer(group, model(), {});
    const Framework framework(0);
    std::vector<Framework::Tensor> tensors = framework.tensors(model());
    for (std::size_t i = 1; i < tensors.size(); ++i) reducer.ready(i, tensors[i].data(), 0, nullptr);
    reducer.abort("enough");
    EXPECT_EQ(stand_in_busy(), 0);
    EXPECT_THROW(reducer.ready(0, tensors[0].data(), 0, nullptr), ClosedError);
  });
  EXPECT_EQ(stand_in_left(), 0);
}

TEST(DeviceGradient, MayEndInTheMiddleOfAStep) {
  run({2}, [](Group& group) {
    const Framework framework(0);
    std::vector<Framework::Tensor> tensors = framework.tensors(model());
    {
      GradientReducer reducer(group, model(), {});
      for (std::size_t i = 1; i < tensors.size(); ++i) reducer.ready(i, tensors[i].data(), 0, nullptr);
    }
    group.barrier();
  });
  EXPECT_EQ(stand_in_left(), 0);
}

TEST(DeviceGradient, OfAnyDtype) {
  run({2}, [](Group& group) {
    GradientReducer reducer(group, {{"w", 1000, DType::kFloat64}, {"x", 3, DType::kFloat64}}, {});
    const Framework framework(0);
    auto tensor = framework.tensor(2000);
    auto small = framework.tensor(6);
    const std::vector<double> values(1000, 1.5 + group.rank());
    Values bits(2000);
    std::memcpy(bits.data(), values.data(), 8000);
    const cuda::Event event = framework.write(tensor, bits);
    reducer.ready(1, small.data(), 0, nullptr, false);
    reducer.ready(0, tensor.data(), 0, event.handle());
    reducer.finish();
    reducer.wait(framework.stream());
    const Values found = framework.read(tensor, 2000);
    std::vector<double> means(1000);
    std::memcpy(means.data(), found.data(), 8000);
    EXPECT_EQ(means, std::vector<double>(1000, 2.0));
    EXPECT_TRUE(reducer.is_used(0));
    EXPECT_FALSE(reducer.is_used(1));
  });
}

#if !defined(__SANITIZE_THREAD__)
// Where a child lets go of what it has inherited, as a worker of a data loader does at its end.
TEST(DeviceGradient, AForkedChildEndsAtOnce) {
  run({1}, [](Group& group) {
    auto reducer = std::make_unique<GradientReducer>(group, model(), GradientReducerOptions{});
    const Framework framework(0);
    auto tensor = framework.tensor(1);
    reducer->ready(0, tensor.data(), 0, nullptr);
    reducer->finish();
    reducer->wait();
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);
      reducer.reset();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}
#endif

}  // namespace
}  // namespace smdp::test
