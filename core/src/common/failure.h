// An error as data, which ranks exchange when a group fails.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "smdp/error.h"

namespace smdp {

struct Failure {
  ErrorKind kind = ErrorKind::kInternal;
  std::string text;
  std::vector<int> lost;     // ranks that are gone; PeerLostError only
  bool is_deadlock = false;  // across several groups: all waits that it includes must end, whatever their group

  // Reads an exception of any type.
  static Failure of(const std::exception_ptr& error);
  // Makes the exception of this kind.
  std::exception_ptr exception() const;
};

// Removes the "[smdp] " from the start of a message that becomes part of another one.
std::string without_tag(const std::string& text);

// Returns a group's name for a message: 'world/gradients-0' (gradient 'w'). The purpose may be empty.
std::string quoted(const std::string& group, const std::string& purpose);

// Returns, for example, "1.5 s".
std::string seconds(std::chrono::milliseconds time);

}  // namespace smdp
