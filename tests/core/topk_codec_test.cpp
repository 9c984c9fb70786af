// Which values top-k chooses: those that a sort by magnitude would.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "fusion/float_bits.h"
#include "fusion/gradient_codec.h"

namespace smdp::test {
namespace {

std::vector<float> chosen(const std::vector<float>& values, double ratio) {
  const auto codec = make_topk_codec(values.size(), ratio, 0);
  std::vector<std::byte> wire(codec->encoded_bytes(values.size()));
  codec->encode(0, values.data(), values.size(), wire.data());
  std::vector<float> decoded(values.size(), -1);
  codec->decode(wire.data(), values.size(), decoded.data());
  return decoded;
}

// Of equal ones the first.
std::vector<float> sorted_choice(const std::vector<float>& values, double ratio) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return magnitude(values[a]) > magnitude(values[b]); });
  const auto k = static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(values.size())));
  std::vector<float> result(values.size(), 0);
  for (std::size_t i = 0; i < std::min(k, values.size()); ++i) result[order[i]] = values[order[i]];
  return result;
}

void expect_same_choice(const std::vector<float>& values) {
  for (const double ratio : {1e-6, 0.01, 0.1, 0.5, 1.0}) {
    const std::vector<float> got = chosen(values, ratio);
    const std::vector<float> expected = sorted_choice(values, ratio);
    // As bytes: a NaN equals itself.
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << values.size() << " " << ratio;
  }
}

TEST(TopKCodec, ChoosesTheLargest) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 1e-3F);
  for (const std::size_t count : {1, 2, 63, 1000, 20'000}) {
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    expect_same_choice(values);
    for (float& value : values) value = std::round(value * 1e3F);  // many are equal, many zero
    for (float& value : values) value += 0.0F;                     // no -0, which is not sent
    expect_same_choice(values);
    std::fill(values.begin(), values.end(), 3.0F);
    expect_same_choice(values);
  }
}

TEST(TopKCodec, WhatIsNotFiniteComesFirst) {
  std::vector<float> values(1000, 1e30F);
  values[500] = -std::numeric_limits<float>::infinity();
  values[700] = std::numeric_limits<float>::quiet_NaN();
  values[900] = std::numeric_limits<float>::max();
  expect_same_choice(values);
  EXPECT_TRUE(std::isnan(chosen(values, 0.001)[700]));
}

// The bound comes from a sample: from one that tells nothing of the rest, the choice is the same.
TEST(TopKCodec, WhatTheSampleMisses) {
  constexpr std::size_t kCount = 65'536;
  std::vector<float> values(kCount, 1e-3F);
  for (std::size_t i = 0; i < kCount; i += 64) values[i] = 5;  // what a stride of 64 sees
  expect_same_choice(values);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = i % 64 == 0 ? 0.0F : static_cast<float>(i % 977);
  expect_same_choice(values);
  std::fill(values.begin(), values.end(), 0.0F);
  values[12'345] = -1;
  expect_same_choice(values);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1009);
  values[300] = std::numeric_limits<float>::quiet_NaN();
  values[40'000] = -std::numeric_limits<float>::infinity();
  expect_same_choice(values);
}

TEST(TopKCodec, NothingOfNothing) { EXPECT_TRUE(chosen({}, 0.5).empty()); }

}  // namespace
}  // namespace smdp::test
