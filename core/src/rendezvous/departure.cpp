#include "rendezvous/departure.h"

#include <chrono>
#include <exception>
#include <numeric>
#include <string>

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLongest{3000};

std::string departure_key(int rank) { return "departure/" + std::to_string(rank); }

}  // namespace

void announce_departure(Store& store, int rank) {
  try {
    store.set(departure_key(rank), "1");
  } catch (const std::exception&) {
    // The store has ended, so no rank waits for this any more.
  }
}

void await_departures(Store& store, const std::vector<int>& others, const std::function<bool()>& interrupted,
                      const std::function<bool(int rank)>& is_gone) {
  const auto deadline = steady_clock::now() + kLongest;
  for (const int other : others) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) return;
    if (is_gone && is_gone(other)) continue;
    bool is_interrupted = false;
    try {
      store.get_unless(departure_key(other), left, [&] {
        is_interrupted = interrupted && interrupted();
        return is_interrupted || (is_gone && is_gone(other));
      });
    } catch (const std::exception&) {
      if (is_interrupted) throw;
      // The rank or the store has ended.
    }
  }
}

std::vector<int> all_but_first(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size - 1));
  std::iota(ranks.begin(), ranks.end(), 1);
  return ranks;
}

}  // namespace smdp
