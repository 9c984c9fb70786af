// The library's only global: the engines of this process, and the progress threads that they share.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "transport/progress.h"

namespace smdp {

class Engine;

// Progress threads live as long as the process: an idle one costs nothing, and nothing must be joined at exit. threads:
// how many there should be (SMDP_THREADS); groups take turns using them. A forked child gets new ones.
std::shared_ptr<Progress> shared_progress(int threads);

void register_engine(const std::shared_ptr<Engine>& engine);

// Calls `look` with every engine of this process until it returns true.
void look_at_engines(const std::function<bool(Engine&)>& look);

}  // namespace smdp
