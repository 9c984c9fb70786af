// An error as data: what travels between ranks when a group fails.
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
  bool is_deadlock = false;  // of several groups: all that wait in it must hear, whatever group they wait in

  // Reads the exception, whatever its type.
  static Failure of(const std::exception_ptr& error);
  // Makes the exception of this kind.
  std::exception_ptr exception() const;
};

// Without the "[smdp] " at the start of a message that becomes part of another one.
std::string without_tag(const std::string& text);

// A group in a message: 'world/gradients-0' (gradient 'w'). The purpose may be empty.
std::string quoted(const std::string& group, const std::string& purpose);

// "1.5 s", for messages.
std::string seconds(std::chrono::milliseconds time);

}  // namespace smdp
