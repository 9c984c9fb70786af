// GB of float32 per second that one core codes, by wire type: the rates of core/src/cost/coding_cost.h.
//
//   tox -e core-released
//   g++ -O3 -std=c++20 -Icore/src -Icore/include tests/benchmarks/wire_types.cpp \
//       .tox/core-released/threads/tests/libsmdp_internal.a -lpthread -o wire_types && ./wire_types
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "fusion/gradient_codec.h"

namespace {

constexpr std::size_t kCount = std::size_t{4} << 20;
constexpr std::size_t kPiece = std::size_t{64} << 10;  // elements
constexpr std::size_t kHosts = 2;

// Best of 7, over all pieces.
double rate(const std::function<void(std::size_t)>& piece) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int round = 0; round < 7; ++round) {
    const auto start = Clock::now();
    for (std::size_t offset = 0; offset < kCount; offset += kPiece) piece(offset);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, kCount * sizeof(float) / seconds / 1e9);
  }
  return best;
}

void measure(const char* name, smdp::GradientCodec& codec, const std::vector<float>& gradients) {
  std::vector<std::byte> part(codec.encoded_bytes(kPiece));
  std::vector<std::byte> sum(codec.sum_bytes(kPiece, kHosts));
  std::vector<float> decoded(kPiece);
  const double encode = rate([&](std::size_t at) { codec.encode(at, gradients.data() + at, kPiece, part.data()); });
  const double decode = rate([&](std::size_t) { codec.decode(part.data(), kPiece, decoded.data()); });
  const std::vector<float> total = decoded;  // as sparse as a sum of top-k's
  const double encode_sum =
      rate([&](std::size_t at) { codec.encode_sum(at, total.data(), kPiece, kHosts, sum.data()); });
  const double decode_sum = rate([&](std::size_t) { codec.decode_sum(sum.data(), kPiece, kHosts, decoded.data()); });
  std::printf("%-16s encode %6.2f  decode %6.2f  encode_sum %6.2f  decode_sum %6.2f\n", name, encode, decode,
              encode_sum, decode_sum);
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1e-3F);
  std::vector<float> gradients(kCount);
  std::generate(gradients.begin(), gradients.end(), [&] { return normal(random); });
  const std::vector<float> ones(kCount, 1);
  measure("fp16", *smdp::make_cast_codec(smdp::DType::kFloat16), gradients);
  measure("bf16", *smdp::make_cast_codec(smdp::DType::kBfloat16), gradients);
  measure("int8", *smdp::make_int8_codec(kCount), gradients);
  measure("topk 1 %", *smdp::make_topk_codec(kCount, 0.01, 0), gradients);
  measure("topk 1 %, ones", *smdp::make_topk_codec(kCount, 0.01, 0), ones);
}
