// Memory that exists once per host, and parameters that are updated in it.
#include "smdp/host_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <latch>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "ranks.h"
#include "smdp/call_name.h"
#include "smdp/error.h"
#include "smdp/gradient_reducer.h"

namespace smdp::test {
namespace {

std::vector<Gradient> model() {
  std::vector<Gradient> gradients;
  for (const std::size_t count : {1, 17, 4096, 0, 35'000, 250, 1000, 70'001}) {
    gradients.push_back({"layer" + std::to_string(gradients.size()), count, DType::kFloat32});
  }
  return gradients;
}

void reduce_nothing(GradientReducer& reducer) {
  reducer.finish();
  reducer.wait();
}

class OncePerHost : public testing::TestWithParam<std::tuple<Layout, ShardScope>> {};

TEST_P(OncePerHost, ParametersAreUpdatedInPlace) {
  run(std::get<0>(GetParam()), [](Group& group) {
    GradientReducerOptions options;
    options.shards = std::get<1>(GetParam());
    options.buffer_bytes = 100'000;
    GradientReducer reducer(group, model(), options);
    const std::vector<ShardedBuffer>& buffers = reducer.sharded_buffers();
    std::size_t elements = 0;
    for (const ShardedBuffer& buffer : buffers) elements += buffer.count;
    HostMemory memory(group, elements * sizeof(float));
    ASSERT_EQ(memory.size(), elements * sizeof(float));
    std::vector<void*> data;
    auto* values = reinterpret_cast<float*>(memory.data());
    for (const ShardedBuffer& buffer : buffers) {
      data.push_back(values);
      values += buffer.count;
    }
    const auto all_are = [&](float expected) {
      const auto* all = reinterpret_cast<const float*>(memory.data());
      for (std::size_t k = 0; k < elements; ++k) ASSERT_EQ(all[k], expected) << k;
    };
    for (int step = 0; step < 20; ++step) {
      reduce_nothing(reducer);
      all_are(static_cast<float>(step));  // no rank of this host has begun to write
      memory.await_host();
      const std::unique_ptr<ParameterGather> gather = reducer.gather(data, true);
      for (std::size_t number = buffers.size(); number-- > 0;) {
        for (const ShardedBuffer::Range& own : buffers[number].owned) {
          for (std::size_t k = own.begin; k < own.end; ++k) static_cast<float*>(data[number])[k] += 1;
        }
        gather->ready(number);
      }
      gather->wait();
      all_are(static_cast<float>(step + 1));
    }
  });
}

#if defined(__SANITIZE_THREAD__)
const Layout kLayouts[] = {{2}, {2, 2}};
#else
const Layout kLayouts[] = {{1}, {2}, {4}, {2, 2}, {2, 1}, {1, 1, 1}};
#endif

INSTANTIATE_TEST_SUITE_P(Layouts, OncePerHost,
                         testing::Combine(testing::ValuesIn(kLayouts),
                                          testing::Values(ShardScope::kWorld, ShardScope::kHost)),
                         [](const auto& info) {
                           std::string name = name_of(std::get<1>(info.param));
                           for (const int ranks : std::get<0>(info.param)) name += "_" + std::to_string(ranks);
                           return name;
                         });

TEST(HostMemory, IsSharedInsideEachHost) {
  run({2, 1}, [](Group& group) {
    HostMemory memory(group, 8192);
    for (std::size_t k = 0; k < memory.size(); ++k) ASSERT_EQ(memory.data()[k], std::byte{0});
    memory.await_host();
    if (group.local_rank() == 0) std::memset(memory.data(), 10 + group.host_index(), memory.size());
    memory.await_host();
    for (std::size_t k = 0; k < memory.size(); ++k) {
      ASSERT_EQ(memory.data()[k], static_cast<std::byte>(10 + group.host_index()));
    }
    HostMemory nothing(group, 0);
    EXPECT_EQ(nothing.data(), nullptr);
  });
}

// Returns how many descriptors of shared memory this process has open.
std::ptrdiff_t open_memories() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::count_if(begin(files), end(files), [](const auto& file) {
    std::error_code gone;
    return read_symlink(file, gone).string().starts_with("/memfd:");
  });
}

TEST(HostMemory, LeavesNoDescriptorOpen) {
  for (const int ranks : {1, 2}) {
    run({ranks}, [](Group& group) {
      const std::ptrdiff_t before = open_memories();
      group.barrier();
      HostMemory memory(group, 4096);
      memory.await_host();
      EXPECT_EQ(open_memories(), before);
      group.barrier();
    });
  }
}

TEST(HostMemory, AFailureElsewhereEndsTheWait) {
  std::latch others(2);
  const auto body = [&others](Group& group) {
    HostMemory memory(group, 4096);
    if (group.rank() < 2) others.count_down();
    if (group.rank() == 0) {
      EXPECT_THROW(memory.await_host(), ClosedError);
      return;
    }
    std::byte nothing{};
    if (group.rank() == 2) {
      others.wait();
      group.abort("a reason");
    }
    EXPECT_THROW(group.all_reduce(&nothing, &nothing, std::array<std::int64_t, 1>{1}, DType::kUint8, ReduceOp::kSum),
                 ClosedError);
  };
  EXPECT_THROW(run({2, 1}, body), ClosedError);  // the group of the job is closed
}

TEST(HostMemory, AnInterruptionEndsTheSetup) {
  const auto body = [](Group& group) {
    if (group.rank() == 0) {
      EXPECT_THROW(HostMemory(group, 4096, [] { return true; }), ClosedError);
      return;
    }
    const auto local = group.split(group.host_index(), group.rank(), "host memory");  // goes no further
    while (!group.error()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_THROW(run({2}, body), ClosedError);  // the group of the job is closed
}

TEST(HostMemory, AbortEndsTheWait) {
  run({2}, [](Group& group) {
    HostMemory memory(group, 4096);
    if (group.rank() == 1) return memory.abort("a reason");
    try {
      memory.await_host();
      ADD_FAILURE() << "it ended";
    } catch (const ClosedError& error) {
      EXPECT_NE(std::string(error.what()).find("a reason"), std::string::npos) << error.what();
    }
  });
}

TEST(HostMemory, TooMuchIsAnErrorOnAllRanks) {
  run({2, 1}, [](Group& group) {
    const auto message = [&group](std::size_t bytes) {
      try {
        HostMemory memory(group, bytes);
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    const std::string too_much = message(std::size_t{1} << 50);
    EXPECT_NE(too_much.find("rank 0 (host"), std::string::npos) << too_much;
    EXPECT_NE(too_much.find("needs 1125899906842624 bytes, and this host has"), std::string::npos) << too_much;
    const std::string differs = message(group.rank() == 1 ? 8192 : 4096);
    EXPECT_NE(differs.find("asks for 8192 bytes of memory for each host, and rank 0 for 4096"), std::string::npos)
        << differs;
    EXPECT_EQ(message(4096), "");
  });
}

TEST(HostMemory, GathersThatDifferAreFound) {
  run({2}, [](Group& group) {
    GradientReducerOptions options;
    options.shards = ShardScope::kWorld;
    GradientReducer reducer(group, {{"weight", 1000}}, options);
    HostMemory memory(group, 4000);
    reduce_nothing(reducer);
    const std::unique_ptr<ParameterGather> gather = reducer.gather({memory.data()}, group.rank() == 0);
    set_call_name("step");  // of this thread, which ends with the test
    gather->ready(0);
    try {
      gather->wait();
      ADD_FAILURE() << "it ended";
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find("into memory that exists once per host"), std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace smdp::test
