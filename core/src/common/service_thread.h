// The threads that smdp starts.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace smdp {

// It gets no signals but those of its own faults: all others belong to the program's own threads. `name` is what
// debuggers show, of at most 15 characters. Throws ShortageError if there may be no more
// threads.
std::thread service_thread(const std::string& name, std::function<void()> body);

}  // namespace smdp
