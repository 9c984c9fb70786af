// The thread that notifies frameworks of ended operations. Their callbacks run code that the progress thread must not.
#pragma once

#include <functional>

namespace smdp {

// Callbacks run one after the other, in the order of the calls. The thread starts with the first and lives as long as
// the process; a forked child gets its own.
void run_on_completion_thread(std::function<void()> callback);

}  // namespace smdp
