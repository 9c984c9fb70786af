#include "fusion/second_look.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "collectives/batch.h"
#include "reduce/reduce.h"

namespace smdp {
namespace {

// A gain within the noise is not worth another layout.
constexpr double kClearly = 0.67;
constexpr double kWakeUp = 200e-6;  // s; threads that happen to be awake gain less
constexpr int kLatencySamples = 4;
constexpr int kTransferSamples = 2;
constexpr int kSums = 2;
constexpr double kLeast = 1e-7;  // s, less than any all_reduce takes

// Returns 1000 unless the time is clearly shorter.
std::uint32_t thousandths(double now, double before) {
  if (now >= kClearly * before) return 1000;
  return static_cast<std::uint32_t>(std::max(std::lround(1000 * now / before), 1L));
}

// The shortest times may come from different moments, so the difference is bounded from below.
double transfer(const Sampled& sampled) { return std::max(sampled.large - sampled.small, 0.3 * sampled.large); }

double least_of(const std::vector<Group::Handle>& handles) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& handle : handles) {
    least = std::min(least, std::chrono::duration<double>(handle->ended() - handle->began()).count());
  }
  return std::max(least, kLeast);
}

// Returns the shortest of several.
double seconds_of_sum(std::vector<float>& data) {
  const std::vector<float> other(data.size());
  const std::array<const void*, 2> sources{data.data(), other.data()};
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kSums; ++i) {
    const auto start = std::chrono::steady_clock::now();
    reduce(data.data(), sources.data(), sources.size(), data.size(), {DType::kFloat32, ReduceOp::kSum});
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return std::max(least, kLeast);
}

}  // namespace

std::optional<Shortened> shortened(const Sampled& before, const Sampled& now) {
  const bool is_later = now.small > before.small - kWakeUp;
  const Shortened by{is_later ? 1000 : thousandths(now.small, before.small),
                     thousandths(transfer(now), transfer(before)), thousandths(now.sum, before.sum)};
  if (std::min({by.latency, by.transfer, by.sum}) == 1000) return std::nullopt;
  return by;
}

cost::Measured corrected(cost::Measured measured, const Shortened& by) {
  measured.latency *= by.latency / 1000.0;
  measured.bandwidth *= 1000.0 / by.transfer;
  measured.reduction *= 1000.0 / by.sum;
  return measured;
}

SecondLook::SecondLook(Group& group, const cost::Measured& measured) : floats_(measured.floats) {
  begin(group);
  last_->wait();
  end();
  // Only the latency differs here: no thread has to be woken.
  const auto bytes = static_cast<double>(floats_ * sizeof(float));
  known_ = Sampled{least_->small, least_->small + bytes / measured.bandwidth, 2 * bytes / measured.reduction};
}

void SecondLook::begin(Group& group) {
  data_.assign(floats_, 0);
  sum_ = seconds_of_sum(data_);
  const auto sample = [&](std::size_t floats) {
    Call call;
    call.async = true;
    call.is_counted = false;
    auto* bytes = reinterpret_cast<std::byte*>(data_.data());
    std::vector<Batch::Item> items{{bytes, bytes, floats, {DType::kFloat32, ReduceOp::kSum}}};
    return group.all_reduce_batch(std::make_shared<Batch>(std::move(items), 1, cost::ExchangeSizes{}), call);
  };
  sample(1);  // ranks reach the first one at different times
  for (int i = 0; i < kLatencySamples; ++i) small_.push_back(sample(1));
  for (int i = 0; i < kTransferSamples; ++i) large_.push_back(sample(floats_));
  last_ = large_.back();
}

void SecondLook::end() {
  Sampled now{least_of(small_), least_of(large_), sum_};
  if (least_) {
    now = {std::min(now.small, least_->small), std::min(now.large, least_->large), std::min(now.sum, least_->sum)};
  }
  least_ = now;
  small_.clear();
  large_.clear();
  last_.reset();
  data_ = {};
}

std::optional<Shortened> SecondLook::news() {
  const std::optional<Shortened> found = shortened(*known_, *least_);
  if (found) known_ = least_;
  return found;
}

}  // namespace smdp
