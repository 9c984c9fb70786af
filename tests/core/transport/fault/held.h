// What is told later than it should be, in the order of its telling or in another one.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <utility>

#include "transport/progress.h"

namespace smdp::test {

class Held {
 public:
  // At most so late.
  static constexpr std::chrono::microseconds kMost{2000};

  explicit Held(std::uint64_t seed) : random_(seed) {}

  // Delayed: it comes after what was told before it.
  void delay(std::function<void()> tell) {
    last_ = std::max(last_, Clock::now() + std::chrono::microseconds(random_() % kMost.count()));
    items_.push_back({last_, std::move(tell)});
  }
  // Reordered: the next one overtakes it. True if there is one that it has overtaken itself.
  bool reorder(std::function<void()> tell) {
    if (items_.empty()) {
      items_.push_back({Clock::now() + kMost, std::move(tell)});
      return false;
    }
    tell();
    release_all();
    return true;
  }

  bool release(Clock::time_point now) {
    bool any = false;
    for (; !items_.empty() && items_.front().due <= now; any = true) {
      const std::function<void()> tell = std::move(items_.front().tell);
      items_.pop_front();
      tell();
    }
    return any;
  }
  void release_all() { release(Clock::time_point::max()); }
  void forget() { items_.clear(); }
  Clock::time_point next_due() const { return items_.empty() ? Clock::time_point::max() : items_.front().due; }

 private:
  struct Item {
    Clock::time_point due;
    std::function<void()> tell;
  };
  std::mt19937_64 random_;
  std::deque<Item> items_;
  Clock::time_point last_{};
};

}  // namespace smdp::test
