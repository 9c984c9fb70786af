#include "transport/shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace smdp {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void ring_doorbell(std::atomic<std::uint32_t>& sleep, int eventfd) {
  if (sleep.load() == kAwake) return;
  const std::uint32_t state = sleep.exchange(kAwake);
  if (state == kInFutex) {
    ::syscall(SYS_futex, &sleep, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  } else if (state == kInEpoll) {
    const std::uint64_t one = 1;
    // This cannot block: the counter would have to reach 2^64 - 1.
    [[maybe_unused]] const ssize_t written = ::write(eventfd, &one, sizeof one);
  }
}

void futex_sleep(std::atomic<std::uint32_t>& sleep, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(seconds.count());
  limit.tv_nsec = static_cast<long>((timeout - seconds).count());
  ::syscall(SYS_futex, &sleep, FUTEX_WAIT, kInFutex, &limit, nullptr, 0);
}

}  // namespace smdp
