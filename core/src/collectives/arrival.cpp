#include "smdp/arrival.h"

#include <utility>
#include <vector>

#include "common/mutex.h"

namespace smdp {

struct Arrival::Functions {
  Mutex mutex;  // `prepare` runs under it
  std::vector<std::function<void()>> prepare SMDP_GUARDED_BY(mutex);
  std::function<void()> wake SMDP_GUARDED_BY(mutex);
};

Arrival::Arrival() : functions_(std::make_unique<Functions>()) {}
Arrival::~Arrival() = default;

void Arrival::arrive() {
  Functions& functions = *functions_;
  std::function<void()> wake;
  {
    const Lock lock(functions.mutex);
    if (is_there()) return;
    for (const auto& prepare : functions.prepare) prepare();
    functions.prepare.clear();
    is_there_.store(true, std::memory_order_release);
    wake = functions.wake;
  }
  if (wake) wake();
}

void Arrival::prepare_by(std::function<void()> function) {
  Functions& functions = *functions_;
  const Lock lock(functions.mutex);
  is_there() ? function() : functions.prepare.push_back(std::move(function));
}

void Arrival::wake_by(std::function<void()> function) {
  Functions& functions = *functions_;
  const Lock lock(functions.mutex);
  functions.wake = std::move(function);
}

}  // namespace smdp
