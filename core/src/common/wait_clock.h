// The clock of timed waits on conditions: the steady one, which jumps of the system's do not move. Under TSan, which
// knows no wait by it, the system's.
#pragma once

#include <chrono>

namespace smdp {

#if defined(__SANITIZE_THREAD__)
using WaitClock = std::chrono::system_clock;
#else
using WaitClock = std::chrono::steady_clock;
#endif

}  // namespace smdp
