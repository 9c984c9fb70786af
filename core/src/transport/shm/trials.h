// Finds by trial which of two ways is cheaper at this place and time. The more expensive one is tried again after every
// kPeriod uses, because the answer may change (virtual machines move between cores).
#pragma once

#include <algorithm>
#include <cstdint>

namespace smdp {

class Trials {
 public:
  static constexpr std::uint64_t kPeriod = 32;

  // Returns 0 or 1.
  std::uint32_t way() const { return way_; }

  // Records the cost of a use of way(). The first use after a change does not count, because other ranks may still have
  // used the old way.
  void record(double cost) {
    ++uses_;
    if (is_settling_) {
      is_settling_ = false;
      return;
    }
    Known& here = known_[way_];
    const Known& other = known_[1 - way_];
    const bool is_fresh = here.uses != 0 && uses_ - here.uses < kPeriod / 4;
    // A use that was disturbed may have cost any multiple.
    here.cost = is_fresh ? here.cost + kWeight * (std::min(cost, 2 * here.cost) - here.cost) : cost;
    here.uses = uses_;
    const bool is_stale = other.uses == 0 ? uses_ > 1 : uses_ - other.uses >= kPeriod;
    if (is_stale || (other.uses != 0 && other.cost < kMargin * here.cost)) {
      way_ = 1 - way_;
      is_settling_ = true;
    }
  }

 private:
  static constexpr double kWeight = 0.3;   // weight of the newest cost
  static constexpr double kMargin = 0.95;  // a way must be at least this much cheaper to be chosen

  struct Known {
    double cost = 0;
    std::uint64_t uses = 0;  // uses_ at the time of the measurement
  };
  Known known_[2];
  std::uint32_t way_ = 0;
  std::uint64_t uses_ = 0;
  bool is_settling_ = true;  // true at first, because memory is touched for the first time
};

}  // namespace smdp
