// The clock of timed waits on conditions. TSan knows no wait by the steady one; elsewhere jumps of the system's do no
// harm.
#pragma once

#include <chrono>

namespace smdp {

#if defined(__SANITIZE_THREAD__)
using WaitClock = std::chrono::system_clock;
#else
using WaitClock = std::chrono::steady_clock;
#endif

}  // namespace smdp
