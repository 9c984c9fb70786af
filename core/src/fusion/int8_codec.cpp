#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "fusion/float_bits.h"
#include "fusion/gradient_codec.h"
#include "fusion/residual.h"

namespace smdp {
namespace {

constexpr std::size_t kBlock = 256;
// Added to a number below 2^22, this leaves the nearest integer in the low bits, with ties to even.
constexpr float kRounder = 12582912.0F;

class Int8Codec final : public GradientCodec {
 public:
  explicit Int8Codec(std::size_t count) : residual_(count) {}

  std::size_t encoded_bytes(std::size_t count) const override {
    return (count + kBlock - 1) / kBlock * sizeof(float) + count;
  }

  void encode(std::size_t offset, const float* in, std::size_t count, std::byte* out) override {
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t n = std::min(kBlock, count - begin);
      encode_block(in + begin, residual_.now(offset + begin), residual_.next(offset + begin), n, out);
      out += sizeof(float) + n;
    }
  }

  void decode(const std::byte* in, std::size_t count, float* out) const override {
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t n = std::min(kBlock, count - begin);
      float scale = 0;
      std::memcpy(&scale, in, sizeof scale);
      const auto* numbers = reinterpret_cast<const std::int8_t*>(in + sizeof scale);
      for (std::size_t i = 0; i < n; ++i) out[begin + i] = scale * static_cast<float>(numbers[i]);
      in += sizeof scale + n;
    }
  }

  void end_step(bool counts) override { residual_.end_step(counts); }
  void rescale(float factor) override { residual_.rescale(factor); }
  bool has_state() const override { return true; }
  std::vector<Residual*> kept() override { return {&residual_}; }

 private:
  static void encode_block(const float* in, const float* now, float* next, std::size_t n, std::byte* out) {
    float values[kBlock];
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = in[i] + now[i];
      largest = std::max(largest, magnitude(values[i]));
    }
    auto* numbers = reinterpret_cast<std::int8_t*>(out + sizeof(float));
    float scale = std::bit_cast<float>(largest) / 127;
    if (largest >= kInfinityBits) {
      // The whole block becomes infinite, with each value's sign, or NaN, because the values are no longer known.
      scale = std::bit_cast<float>(largest);
      for (std::size_t i = 0; i < n; ++i) numbers[i] = static_cast<std::int8_t>(std::signbit(values[i]) ? -1 : 1);
      std::copy(now, now + n, next);
    } else if (scale < 1e-37F) {  // zeros, or so small that 1 / scale overflows
      scale = 0;
      std::memset(numbers, 0, n);
      std::copy(values, values + n, next);
    } else {
      const float inverse = 1 / scale;
      for (std::size_t i = 0; i < n; ++i) {
        const float rounded = values[i] * inverse + kRounder;
        const auto number = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(rounded) & 0xffU);
        numbers[i] = number;
        next[i] = values[i] - scale * static_cast<float>(number);
      }
    }
    std::memcpy(out, &scale, sizeof scale);
  }

  Residual residual_;
};

}  // namespace

std::unique_ptr<GradientCodec> make_int8_codec(std::size_t count) { return std::make_unique<Int8Codec>(count); }

}  // namespace smdp
