// Ends the wait for a new group by what an existing group of the same ranks knows about them.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "smdp/meeting.h"

namespace smdp {

class Engine;

// For ranks of `base` that meet separately: returns the death or departure of one of them.
Obstacle watch_ranks(const std::shared_ptr<Engine>& base, std::vector<int> ranks);
// For ranks that agreed by operations of `base` to meet: also returns whatever closes `base`, because some ranks may
// not have got that far.
Obstacle watch_base(const std::shared_ptr<Engine>& base, std::vector<int> ranks);

// Returns why rank 0 of `base`, which may serve the store, has left; null if it has not.
std::function<std::exception_ptr()> watch_server(const std::shared_ptr<Engine>& base);

}  // namespace smdp
