#include "rendezvous/farewell.h"

#include <chrono>
#include <numeric>
#include <string>

#include "smdp/error.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLongest{3000};

std::string farewell_key(int rank) { return "farewell/" + std::to_string(rank); }

}  // namespace

void say_farewell(Store& store, int rank, const std::vector<int>& others) {
  try {
    if (rank != 0) return store.set(farewell_key(rank), "1");
    const auto deadline = steady_clock::now() + kLongest;
    for (const int other : others) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
      if (left.count() <= 0) return;
      store.get(farewell_key(other), left);
    }
  } catch (const Error&) {
    // The store has ended, or a rank in another way: nobody waits for that.
  }
}

std::vector<int> all_but_first(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size - 1));
  std::iota(ranks.begin(), ranks.end(), 1);
  return ranks;
}

}  // namespace smdp
