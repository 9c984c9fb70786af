// How smdp itself makes a group. Its bindings include this header, which is not part of the wheel.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "smdp/group.h"
#include "smdp/meeting.h"

namespace smdp {

// The options that users set, and those that only the library and its bindings set. A copy to GroupOptions keeps only
// the former.
struct GroupSetup : GroupOptions {
  GroupSetup() = default;
  explicit GroupSetup(GroupOptions options) : GroupOptions(std::move(options)) {}

  // What the group is for, e.g. "gradient 'w'", for messages about ranks that do not join it or wait elsewhere. May be
  // empty.
  std::string purpose;
  // Names of groups that this one replaces. A rank that makes this group calls no operation of those groups until all
  // ranks have joined. A rank that waits in one of those groups for such a rank therefore learns within seconds that
  // neither wait can end.
  std::vector<std::string> replaced;
  // Polled while this group, or one made from it, waits for its store; when it returns true, the wait ends with
  // ClosedError. May be empty.
  std::function<bool()> interrupted;
  // Polled likewise; an error that it returns ends the wait. See Group::watch().
  Obstacle obstacle;
  // Polled when the store is unreachable: returns why the rank that serves the store has left, or null if it has not.
  // May be empty.
  std::function<std::exception_ptr()> departure_of_server;
};

}  // namespace smdp
