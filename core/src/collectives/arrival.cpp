#include "smdp/arrival.h"

#include <utility>

namespace smdp {

void Arrival::arrive() {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (is_there()) return;
    for (const auto& prepare : prepare_) prepare();
    prepare_.clear();
    is_there_.store(true, std::memory_order_release);
    wake = wake_;
  }
  if (wake) wake();
}

void Arrival::prepare_by(std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  is_there() ? function() : prepare_.push_back(std::move(function));
}

void Arrival::wake_by(std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(function);
}

}  // namespace smdp
