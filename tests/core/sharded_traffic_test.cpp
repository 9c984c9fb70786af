// What sharded steps send between hosts, beside steps without shards. The kernel counts it, headers and all.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ranks.h"
#include "smdp/gradient_reducer.h"

namespace smdp::test {
namespace {

constexpr int kDescriptors = 1024;
constexpr int kSteps = 3;

// Returns the bytes that all TCP connections of this process have sent, each once.
std::uint64_t bytes_sent() {
  std::uint64_t sum = 0;
  for (int descriptor = 0; descriptor < kDescriptors; ++descriptor) {
    tcp_info info{};
    socklen_t length = sizeof info;
    if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) == 0)
      sum += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
  }
  return sum;
}

struct Case {
  DType dtype;
  Compression compression;
  ShardScope scope;
  bool is_whole = false;  // each gradient has one owner
};

// A large matrix, which has its own buffer, and smaller ones.
std::vector<Gradient> model(DType dtype) {
  return {{"embedding", 400'000, dtype}, {"bias", 700, dtype}, {"first", 90'000, dtype}, {"second", 90'001, dtype}};
}

void step(GradientReducer& reducer, std::vector<std::vector<std::byte>>& gradients, ShardScope scope) {
  for (std::size_t index = gradients.size(); index-- > 0;) reducer.ready(index, gradients[index].data());
  reducer.finish();
  reducer.wait();
  if (scope == ShardScope::kNone) return;
  std::vector<std::vector<std::byte>> parameters;
  std::vector<void*> data;
  for (const ShardedBuffer& buffer : reducer.sharded_buffers()) {
    data.push_back(parameters.emplace_back(buffer.count * size_of(buffer.dtype)).data());
  }
  const std::unique_ptr<ParameterGather> gather = reducer.gather(data);
  for (std::size_t number = 0; number < data.size(); ++number) gather->ready(number);
  gather->wait();
}

std::uint64_t bytes_of_steps(const Layout& layout, const Case& given, ShardScope scope) {
  std::uint64_t sent = 0;
  run(layout, [&](Group& group) {
    GradientReducerOptions options;
    options.compression = given.compression;
    options.shards = scope;
    std::vector<Gradient> gradients = model(given.dtype);
    for (Gradient& gradient : gradients) gradient.is_whole = given.is_whole && scope != ShardScope::kNone;
    GradientReducer reducer(group, gradients, options);
    std::vector<std::vector<std::byte>> values;
    for (const Gradient& gradient : gradients) values.emplace_back(gradient.count * size_of(given.dtype));
    group.barrier();
    const std::uint64_t before = group.rank() == 0 ? bytes_sent() : 0;
    group.barrier();
    for (int number = 0; number < kSteps; ++number) step(reducer, values, scope);
    group.barrier();
    if (group.rank() == 0) sent = bytes_sent() - before;
    group.barrier();
  });
  return sent;
}

class ShardedTraffic : public testing::TestWithParam<std::tuple<Layout, Case>> {};

TEST_P(ShardedTraffic, IsThatOfDataParallelTraining) {
  const auto& [layout, given] = GetParam();
  const auto whole = static_cast<double>(bytes_of_steps(layout, given, ShardScope::kNone));
  const auto sharded = static_cast<double>(bytes_of_steps(layout, given, given.scope));
  EXPECT_LE(sharded, 1.02 * whole);
  EXPECT_GE(sharded, 0.98 * whole);
}

// In a world, 32-bit parameters would lose bits if they were compressed, so only 16-bit ones send no more then.
INSTANTIATE_TEST_SUITE_P(
    Layouts, ShardedTraffic,
    testing::Combine(testing::Values(Layout{2, 2}, Layout{1, 1, 1, 1}),
                     testing::Values(Case{DType::kFloat32, Compression::kNone, ShardScope::kWorld},
                                     Case{DType::kFloat32, Compression::kNone, ShardScope::kHost},
                                     Case{DType::kBfloat16, Compression::kNone, ShardScope::kWorld},
                                     Case{DType::kFloat32, Compression::kBfloat16, ShardScope::kHost},
                                     Case{DType::kFloat32, Compression::kInt8, ShardScope::kHost},
                                     Case{DType::kFloat32, Compression::kNone, ShardScope::kWorld, true})),
    [](const auto& info) {
      const Case& given = std::get<1>(info.param);
      std::string name = std::string(name_of(given.dtype)) + "_" + name_of(given.compression) + "_" +
                         name_of(given.scope) + (given.is_whole ? "_whole" : "");
      for (const int ranks : std::get<0>(info.param)) name += "_" + std::to_string(ranks);
      return name;
    });

}  // namespace
}  // namespace smdp::test
