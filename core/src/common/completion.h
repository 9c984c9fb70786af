// The thread that tells frameworks of ended operations: their callbacks run code that the progress thread must not.
#pragma once

#include <functional>

namespace smdp {

// One after the other, in the order of the calls. It starts with the first and lives as long as the process; a forked
// child gets its own.
void run_on_completion_thread(std::function<void()> callback);

}  // namespace smdp
