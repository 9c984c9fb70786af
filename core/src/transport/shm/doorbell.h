// Wakes a sleeping rank from a local peer: a futex for a blocked caller, an eventfd for a progress thread in epoll.
//
// The owner sets its sleep word, checks once more for what it waits for, and then sleeps. A peer that has published
// data checks the word afterwards. Both use sequentially consistent operations, so one of them always sees the other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace smdp {

inline constexpr std::uint32_t kAwake = 0;
inline constexpr std::uint32_t kInFutex = 1;
inline constexpr std::uint32_t kInEpoll = 2;

// Wakes the owner of `sleep` if it sleeps. eventfd: the owner's.
void ring_doorbell(std::atomic<std::uint32_t>& sleep, int eventfd);

// Sleeps while `sleep` is kInFutex, at most for `timeout`.
void futex_sleep(std::atomic<std::uint32_t>& sleep, std::chrono::nanoseconds timeout);

}  // namespace smdp
