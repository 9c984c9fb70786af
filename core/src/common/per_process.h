// Globals that a forked child must not inherit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/fork_guard.h"

namespace smdp {

// Returns the T of this process. A forked child gets its own, because a thread of the parent may hold the lock of the
// inherited one. Never destroyed, because threads may outlive main.
template <class T>
T& per_process() {
  struct Made {
    T value;
    const std::uint64_t generation = ForkGuard::generation();
  };
  static std::atomic<Made*> current{new Made};
  Made* known = current.load();
  if (!ForkGuard::in_forked_child(known->generation)) return known->value;
  auto fresh = std::make_unique<Made>();
  if (current.compare_exchange_strong(known, fresh.get())) known = fresh.release();
  return known->value;
}

}  // namespace smdp
