// The clock of timed waits on conditions: the steady clock, which adjustments of the system time do not affect. Under
// TSan, which does not know waits on it, the system clock.
#pragma once

#include <chrono>

namespace smdp {

#if defined(__SANITIZE_THREAD__)
using WaitClock = std::chrono::system_clock;
#else
using WaitClock = std::chrono::steady_clock;
#endif

}  // namespace smdp
