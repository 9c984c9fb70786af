// The simulator lays out and cuts as the gradient reducer and its exchange do.
#include "smdp/simulation.h"

#include <gtest/gtest.h>

#include <vector>

#include "collectives/chunks.h"
#include "cost/coding_cost.h"
#include "cost/collective_cost.h"

namespace smdp::test {
namespace {

// 40 MB in 200 gradients.
DdpPrediction predicted(Compression compression, double bandwidth, const char* algorithm = "auto",
                        std::size_t hosts = 2) {
  DdpSetting setting;
  setting.hosts = hosts;
  setting.bandwidth = bandwidth;
  setting.compression = compression;
  setting.algorithm = algorithm;
  return simulate_ddp(std::vector<Layer>(20, {1e-3, 2e-3, std::vector<std::size_t>(10, 50'000)}), setting);
}

TEST(Simulation, NoLinkHasASayInWhereLossyBuffersEnd) {
  for (const Compression compression : {Compression::kInt8, Compression::kTopK}) {
    EXPECT_EQ(predicted(compression, 50e6).buffers, predicted(compression, 50e9).buffers);
  }
  for (const Compression compression : {Compression::kNone, Compression::kBfloat16}) {
    EXPECT_GT(predicted(compression, 50e6).buffers, predicted(compression, 50e9).buffers);
  }
}

TEST(Simulation, WhatIsEncodedGoesDirect) {
  EXPECT_EQ(predicted(Compression::kBfloat16, 1e9, "ring", 64).step_seconds,
            predicted(Compression::kBfloat16, 1e9, "direct", 64).step_seconds);
  EXPECT_NE(predicted(Compression::kNone, 1e9, "ring", 64).step_seconds,
            predicted(Compression::kNone, 1e9, "direct", 64).step_seconds);
}

TEST(Simulation, CodingTakesTimeThatNoLinkSaves) {
  // Every rank of two hosts chooses among its 40 MB.
  EXPECT_GE(predicted(Compression::kTopK, 1e12).communication_seconds,
            cost::coding(40e6, 2, cost::kTopKCoding) * 0.999);
  EXPECT_GT(predicted(Compression::kTopK, 50e9).step_seconds, predicted(Compression::kBfloat16, 50e9).step_seconds);
  EXPECT_LT(predicted(Compression::kTopK, 50e6).step_seconds, predicted(Compression::kBfloat16, 50e6).step_seconds);
}

// On a link without end a buffer takes as long as its messages, or its coding.
TEST(Simulation, ChunksAreThoseOfTheExchange) {
  DdpSetting setting;
  setting.hosts = 16;
  setting.bandwidth = 1e15;
  const std::size_t coded = chunk_bytes(true, Algorithm::kDirect, {}, setting.hosts, 1);
  EXPECT_EQ(coded, setting.hosts * (std::size_t{512} << 10));
  const std::vector<Layer> layers{{1e-3, 2e-3, {4 * coded / sizeof(float)}}};
  const double messages = 2 * static_cast<double>(setting.hosts - 1) * cost::Network{}.message;
  setting.compression = Compression::kBfloat16;
  const DdpPrediction bf16 = simulate_ddp(layers, setting);
  const double coding = cost::coding(4.0 * static_cast<double>(coded), setting.hosts, cost::kCastCoding);
  EXPECT_NEAR(bf16.communication_seconds, coding, 1e-9);
  // After the link the last chunk: its two hops, and what it codes.
  EXPECT_NEAR(bf16.exposed_seconds - coding, 2 * setting.hop_seconds + coding / 4, 1e-7);
  setting.compression = Compression::kNone;
  setting.algorithm = "direct";
  const cost::Measured measured{2 * setting.hop_seconds, setting.bandwidth * 16 / 30};
  const std::size_t plain =
      chunk_bytes(false, Algorithm::kDirect, cost::exchange_sizes(measured, 16, 1), setting.hosts, 1);
  EXPECT_NE(plain, coded);
  const double chunks = static_cast<double>((4 * coded + plain - 1) / plain);
  EXPECT_NEAR(simulate_ddp(layers, setting).communication_seconds, chunks * messages, 1e-9);
}

// Where a shard would be short, the hosts that own one send more than the others.
TEST(Simulation, FewOwnersSendMore) {
  DdpSetting setting;
  setting.hosts = 64;
  setting.bandwidth = 10e9;
  setting.algorithm = "direct";
  const std::vector<Layer> layers{{1e-3, 2e-3, {100'000}}};
  const double wire = 400e3 / setting.bandwidth;
  EXPECT_GT(simulate_ddp(layers, setting).communication_seconds, 4 * wire);
}

}  // namespace
}  // namespace smdp::test
