// Waits for one item of a batch, which never ends if the batch fails before.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "common/thread_wait.h"
#include "smdp/group.h"

namespace smdp {

// How often a wait checks whether to continue.
inline constexpr std::chrono::milliseconds kStepCheck{200};

// Blocks until `part` is done. Throws the error of `whole`, the batch. `interrupted` is polled and may be empty; when
// it returns true, the group is closed.
inline void wait_for_part(Operation& part, const Group::Handle& whole, Group& group,
                          const std::function<bool()>& interrupted) {
  std::optional<WaitScope> scope;
  while (!part.wait_for(kStepCheck)) {
    if (whole->error()) whole->wait();  // throws its error
    if (interrupted && interrupted()) group.abort("interrupted");
    if (!scope) scope.emplace(*whole);
  }
}

}  // namespace smdp
