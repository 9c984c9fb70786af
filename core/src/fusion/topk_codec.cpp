#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "fusion/float_bits.h"
#include "fusion/gradient_codec.h"
#include "fusion/largest.h"
#include "fusion/residual.h"

namespace smdp {
namespace {

// A sparse piece: a count, the places and the values. Its length always corresponds to its capacity.
struct Sparse {
  static std::size_t bytes(std::size_t capacity) { return sizeof(std::uint32_t) * (1 + 2 * capacity); }

  static void write(const float* values, const std::vector<std::uint32_t>& places, std::size_t capacity,
                    std::byte* out) {
    std::memset(out, 0, bytes(capacity));
    const auto n = static_cast<std::uint32_t>(places.size());
    std::memcpy(out, &n, sizeof n);
    if (n == 0) return;
    std::memcpy(out + sizeof n, places.data(), n * sizeof n);
    std::byte* to = out + sizeof n * (1 + capacity);
    for (const std::uint32_t place : places) {
      std::memcpy(to, values + place, sizeof(float));
      to += sizeof(float);
    }
  }

  static void read(const std::byte* in, std::size_t capacity, std::size_t count, float* out) {
    std::fill(out, out + count, 0.0F);
    std::uint32_t n = 0;
    std::memcpy(&n, in, sizeof n);
    for (std::size_t i = 0; i < std::min<std::size_t>(n, capacity); ++i) {
      std::uint32_t place = 0;
      std::memcpy(&place, in + sizeof n * (1 + i), sizeof place);
      if (place < count) std::memcpy(out + place, in + sizeof n * (1 + capacity + i), sizeof(float));
    }
  }
};

// Momentum correction: the residual is a sum of velocities. Returns whether all of it is finite.
bool add_up(const float* in, std::size_t count, float momentum, const float* velocity_now, const float* residual_now,
            float* __restrict velocity, float* __restrict residual) {
  std::uint32_t highest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    velocity[i] = momentum * velocity_now[i] + in[i];
    residual[i] = residual_now[i] + velocity[i];
    highest = std::max(highest, magnitude(residual[i]));
  }
  return highest < kInfinityBits;
}

// The same without momentum, where the velocity is the gradient itself and need not be kept.
bool add_up(const float* in, std::size_t count, const float* residual_now, float* __restrict residual) {
  std::uint32_t highest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    residual[i] = residual_now[i] + in[i];
    highest = std::max(highest, magnitude(residual[i]));
  }
  return highest < kInfinityBits;
}

class TopKCodec final : public GradientCodec {
 public:
  TopKCodec(std::size_t count, double ratio, double momentum)
      : ratio_(ratio), momentum_(static_cast<float>(momentum)), velocity_(count), residual_(count) {}

  std::size_t encoded_bytes(std::size_t count) const override { return Sparse::bytes(capacity(count)); }
  bool encodes_own() const override { return true; }

  void encode(std::size_t offset, const float* in, std::size_t count, std::byte* out) override {
    const bool has_velocity = momentum_ != 0;
    float* velocity = velocity_.next(offset);
    float* residual = residual_.next(offset);
    const bool is_finite =
        has_velocity ? add_up(in, count, momentum_, velocity_.now(offset), residual_.now(offset), velocity, residual)
                     : add_up(in, count, residual_.now(offset), residual);
    const std::vector<std::uint32_t> places = largest(residual, count, capacity(count));
    Sparse::write(residual, places, capacity(count), out);
    if (!is_finite) {
      if (has_velocity) std::copy(velocity_.now(offset), velocity_.now(offset) + count, velocity);
      std::copy(residual_.now(offset), residual_.now(offset) + count, residual);
      return;
    }
    for (const std::uint32_t place : places) residual[place] = 0;
    if (!has_velocity) return;
    for (const std::uint32_t place : places) velocity[place] = 0;
  }

  void decode(const std::byte* in, std::size_t count, float* out) const override {
    Sparse::read(in, capacity(count), count, out);
  }

  // The sum of sparse contributions is also sparse, and travels without loss.
  std::size_t sum_bytes(std::size_t count, std::size_t hosts) const override {
    return Sparse::bytes(std::min(count, hosts * capacity(count)));
  }
  void encode_sum(std::size_t, const float* in, std::size_t count, std::size_t hosts, std::byte* out) override {
    std::vector<std::uint32_t> places;
    for (std::size_t i = 0; i < count; ++i) {
      if (magnitude(in[i]) != 0) places.push_back(static_cast<std::uint32_t>(i));
    }
    Sparse::write(in, places, std::min(count, hosts * capacity(count)), out);
  }
  void decode_sum(const std::byte* in, std::size_t count, std::size_t hosts, float* out) const override {
    Sparse::read(in, std::min(count, hosts * capacity(count)), count, out);
  }

  void end_step(bool counts) override {
    velocity_.end_step(counts);
    residual_.end_step(counts);
  }
  void rescale(float factor) override {
    velocity_.rescale(factor);
    residual_.rescale(factor);
  }
  bool has_state() const override { return true; }
  std::vector<Residual*> kept() override { return {&residual_, &velocity_}; }

 private:
  std::size_t capacity(std::size_t count) const {
    return std::min(count, static_cast<std::size_t>(std::ceil(ratio_ * static_cast<double>(count))));
  }

  const double ratio_;
  const float momentum_;
  Residual velocity_;
  Residual residual_;
};

}  // namespace

std::unique_ptr<GradientCodec> make_topk_codec(std::size_t count, double ratio, double momentum) {
  return std::make_unique<TopKCodec>(count, ratio, momentum);
}

}  // namespace smdp
