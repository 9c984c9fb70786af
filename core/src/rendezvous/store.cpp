#include "smdp/store.h"

#include <algorithm>

#include "smdp/error.h"

namespace smdp {
namespace {

constexpr std::chrono::milliseconds kSlice{500};

}  // namespace

std::string Store::get_unless(const std::string& key, std::chrono::milliseconds timeout,
                              const std::function<bool()>& interrupted) {
  if (!interrupted) return get(key, timeout);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      return get(key, std::clamp(left, std::chrono::milliseconds(0), kSlice));
    } catch (const TimeoutError&) {
      if (interrupted()) throw ClosedError("[smdp] the wait for the rendezvous store was interrupted.");
      if (std::chrono::steady_clock::now() < deadline) continue;
    }
    throw TimeoutError("[smdp] the rendezvous store has no key '" + key + "' after " + std::to_string(timeout.count()) +
                       " ms.");
  }
}

}  // namespace smdp
