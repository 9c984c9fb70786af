#include "collectives/watch.h"

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "collectives/engine/engine.h"
#include "collectives/registry.h"

namespace smdp {
namespace {

// A rank that leaves may have finished joining; what it sent has this time to arrive.
constexpr std::chrono::seconds kArrival{2};
// While all ranks make groups, none runs an operation that would detect a deadlock. A rank that makes a group therefore
// has all ranks asked this often.
constexpr std::chrono::milliseconds kLook{2500};

Obstacle watch(const std::shared_ptr<Engine>& base, std::vector<int> ranks, bool needs_base) {
  std::exception_ptr departure;  // the first one; others leave because of it
  Clock::time_point last_chance;
  Clock::time_point next_look = Clock::now() + kLook;
  return [weak = std::weak_ptr<Engine>(base), ranks = std::move(ranks), needs_base, departure, last_chance,
          next_look](bool has_failed) mutable -> std::exception_ptr {
    const std::shared_ptr<Engine> engine = weak.lock();
    if (!engine) return nullptr;
    if (const std::exception_ptr end = needs_base ? engine->failures().error() : engine->failures().death_of(ranks))
      return end;
    if (Clock::now() >= next_look) {
      next_look = Clock::now() + kLook;
      look_at_engines([](Engine& any) {
        any.diagnosis().look_for_deadlock();
        return false;
      });
    }
    if (!departure) {
      departure = engine->failures().departure_of(ranks);
      last_chance = Clock::now() + kArrival;
    }
    return has_failed || Clock::now() >= last_chance ? departure : nullptr;
  };
}

}  // namespace

Obstacle watch_ranks(const std::shared_ptr<Engine>& base, std::vector<int> ranks) {
  return watch(base, std::move(ranks), false);
}

Obstacle watch_base(const std::shared_ptr<Engine>& base, std::vector<int> ranks) {
  return watch(base, std::move(ranks), true);
}

std::function<std::exception_ptr()> watch_server(const std::shared_ptr<Engine>& base) {
  return [weak = std::weak_ptr<Engine>(base)] {
    const std::shared_ptr<Engine> engine = weak.lock();
    return engine ? engine->failures().departure_of({0}) : nullptr;
  };
}

}  // namespace smdp
