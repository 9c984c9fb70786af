// The threads that smdp starts.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace smdp {

// Starts a thread that gets no signals except those of its own faults; all others go to the program's own threads.
// `name` is what debuggers show, at most 15 characters. Throws ShortageError if there may be no more threads.
std::thread service_thread(const std::string& name, std::function<void()> body);

}  // namespace smdp
