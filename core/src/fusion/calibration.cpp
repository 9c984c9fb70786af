#include "fusion/calibration.h"

#include <algorithm>
#include <array>
#include <limits>

namespace smdp {
namespace {

constexpr std::size_t kAllStreams = std::numeric_limits<std::size_t>::max();
// Several streams share a link less evenly than one, so they must be clearly faster.
constexpr double kWorthIt = 1.15;
// Two samples that differ by less are considered undisturbed.
constexpr double kAgreement = 1.1;
constexpr int kSmallSamples = 4;  // per round: they take almost no time and vary the most
constexpr int kFewestRounds = 3;
constexpr int kMostRounds = 6;
constexpr double kLongest = 50e-3;  // s, after which only the minimum number of rounds is made

// The faster a link is, the larger a sample it needs, and the less time the sample takes.
struct Look {
  std::size_t floats;
  double most;  // s; if an all_reduce takes less, the next look is better
};
constexpr std::array<Look, 3> kLooks{{
    {std::size_t{16} << 10, 10e-3},
    {std::size_t{64} << 10, 5e-3},
    {std::size_t{1} << 20, 0},
}};

class Least {
 public:
  void add(double seconds) {
    second_ = std::min(second_, std::max(seconds, least_));
    least_ = std::min(least_, seconds);
  }
  double value() const { return least_; }
  bool is_sure() const { return second_ <= kAgreement * least_; }

 private:
  double least_ = std::numeric_limits<double>::infinity();
  double second_ = std::numeric_limits<double>::infinity();
};

}  // namespace

cost::Measured calibrate(Probe& probe, bool tries_streams) {
  double spent = 0;
  const auto all_reduce = [&](std::size_t floats, std::size_t streams) {
    const double seconds = probe.all_reduce(floats, streams);
    spent += seconds;
    return seconds;
  };
  all_reduce(1, kAllStreams);  // warms up connections and caches
  Least small;
  Least large;
  Least alone;
  Least sum;
  std::size_t look = 0;
  int rounds = 0;
  for (bool is_over = false; !is_over;) {
    const std::size_t floats = kLooks[look].floats;
    const bool is_fast = look + 1 == kLooks.size();
    const bool compares = tries_streams && is_fast;
    if (rounds == 0) all_reduce(floats, kAllStreams);
    for (int i = 0; i < (is_fast ? kSmallSamples : 1); ++i) small.add(all_reduce(1, kAllStreams));
    large.add(all_reduce(floats, kAllStreams));
    // There is no look after the last one, even if a disturbed machine takes longer for less data.
    if (!is_fast && probe.agreed(large.value() - small.value() < kLooks[look].most)) {
      ++look;
      large = {};
      sum = {};
      rounds = 0;
      continue;
    }
    if (compares && rounds == 0) all_reduce(floats, 1);
    if (compares) alone.add(all_reduce(floats, 1));
    sum.add(probe.sum(floats));
    ++rounds;
    const bool is_sure = small.is_sure() && large.is_sure() && sum.is_sure() && (!compares || alone.is_sure());
    const bool is_long = rounds == kMostRounds || spent > kLongest;
    const bool is_enough = rounds >= kFewestRounds && (is_sure || is_long);
    is_over = probe.agreed(is_enough);
  }
  cost::Measured measured;
  measured.latency = small.value();
  double taken = large.value();
  const bool has_compared = alone.value() < std::numeric_limits<double>::infinity();
  if (tries_streams && (!has_compared || alone.value() <= kWorthIt * taken)) {
    if (has_compared) taken = alone.value();
    measured.streams = 1;
  }
  measured.floats = kLooks[look].floats;
  const auto bytes = static_cast<double>(measured.floats * sizeof(float));
  measured.bandwidth = bytes / std::max(taken - measured.latency, 0.1 * taken);
  measured.reduction = 2 * bytes / std::max(sum.value(), 1e-9);
  return measured;
}

}  // namespace smdp
