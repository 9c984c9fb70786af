// How smdp itself makes a group. Its bindings include this header, which is not in the wheel.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "smdp/group.h"
#include "smdp/meeting.h"

namespace smdp {

// What users set, and what only the library and its bindings do. A copy to GroupOptions has only the former.
struct GroupSetup : GroupOptions {
  GroupSetup() = default;
  explicit GroupSetup(GroupOptions options) : GroupOptions(std::move(options)) {}

  // What it is for, e.g. "gradient 'w'", where not all ranks come, or wait elsewhere for this one. May be empty.
  std::string purpose;
  // Groups whose place this one takes: a rank that makes it calls no operation of those before all ranks have come. A
  // rank that is in one of those, waiting for this one, then hears within seconds that neither can end.
  std::vector<std::string> replaced;
  // Asked now and then while this group, or one that is made of it, waits for its store: true ends that with
  // ClosedError. May be empty.
  std::function<bool()> interrupted;
  // Asked likewise: an error ends the wait with it. See Group::watch().
  Obstacle obstacle;
  // Why the rank that may serve the store has left; null: it has not. Asked where the store is gone. May be empty.
  std::function<std::exception_ptr()> departure_of_server;
};

}  // namespace smdp
