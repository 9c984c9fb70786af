// Waiting briefly without sleeping.
#pragma once

#include <chrono>

namespace smdp {

// A few times the cost of a wake-up.
inline constexpr std::chrono::microseconds kSpin{50};

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

// Calls `poll` for at most kSpin; returns true as soon as it does.
template <class Poll>
bool spin(const Poll& poll) {
  const auto limit = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      pause_cpu();
      if (poll()) return true;
    }
  } while (std::chrono::steady_clock::now() < limit);
  return false;
}

}  // namespace smdp
