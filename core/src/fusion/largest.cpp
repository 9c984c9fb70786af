#include "fusion/largest.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "fusion/float_bits.h"

namespace smdp {
namespace {

constexpr std::size_t kSamples = 1024;

// Returns a magnitude that at least k values nearly always reach, and few more; never zero.
std::uint32_t likely_reached(const float* values, std::size_t count, std::size_t k) {
  if (count < 4 * kSamples) return 1;
  std::vector<std::uint32_t> sample(kSamples);
  for (std::size_t i = 0; i < kSamples; ++i) sample[i] = magnitude(values[i * count / kSamples]);
  // The expected number of samples among the k largest, plus three standard deviations.
  const double expected = static_cast<double>(k) * kSamples / static_cast<double>(count);
  const auto rank = static_cast<std::size_t>(expected + 3 * std::sqrt(expected) + 1);
  if (rank >= kSamples) return 1;
  const auto at = sample.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(sample.begin(), at, sample.end(), std::greater<>());
  return std::max<std::uint32_t>(*at, 1);
}

std::vector<std::uint32_t> places_from(std::uint32_t bound, const float* values, std::size_t count) {
  std::vector<std::uint32_t> places(count);
  std::size_t n = 0;
  for (std::size_t i = 0; i < count; ++i) {
    places[n] = static_cast<std::uint32_t>(i);  // without a branch, which could not be predicted
    n += magnitude(values[i]) >= bound ? 1 : 0;
  }
  places.resize(n);
  return places;
}

}  // namespace

std::vector<std::uint32_t> largest(const float* values, std::size_t count, std::size_t k) {
  if (k == 0) return {};
  std::uint32_t bound = likely_reached(values, count, k);
  std::vector<std::uint32_t> places = places_from(bound, values, count);
  if (places.size() < k && bound > 1) places = places_from(bound = 1, values, count);
  if (places.size() <= k) return places;

  std::vector<std::uint32_t> above;
  for (const std::uint32_t place : places) {
    if (const std::uint32_t m = magnitude(values[place]); m > bound) above.push_back(m);
  }
  // The k-th value is the bound itself if many are equal.
  std::uint32_t kth = bound;
  if (above.size() >= k) {
    const auto at = above.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(above.begin(), at, above.end(), std::greater<>());
    kth = *at;
    above.erase(at, above.end());
  }
  const auto larger = std::count_if(above.begin(), above.end(), [kth](std::uint32_t m) { return m > kth; });
  std::size_t equal = k - static_cast<std::size_t>(larger);
  std::erase_if(places, [&](std::uint32_t place) {
    const std::uint32_t m = magnitude(values[place]);
    if (m != kth) return m < kth;
    if (equal == 0) return true;
    --equal;
    return false;
  });
  return places;
}

}  // namespace smdp
