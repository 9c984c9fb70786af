// While a group is made of ranks of another one: what that one knows of them ends the wait.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "smdp/meeting.h"

namespace smdp {

class Engine;

// For ranks of `base` that meet by themselves: the death or departure of one of them.
Obstacle watch_ranks(const std::shared_ptr<Engine>& base, std::vector<int> ranks);
// Where they have agreed on it by operations of `base`: also whatever closes that, since not all may have got so far.
Obstacle watch_base(const std::shared_ptr<Engine>& base, std::vector<int> ranks);

// Why rank 0 of `base`, which may serve the store, has left; null: it has not.
std::function<std::exception_ptr()> watch_server(const std::shared_ptr<Engine>& base);

}  // namespace smdp
