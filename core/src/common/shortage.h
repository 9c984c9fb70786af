// System calls that fail for want of something: a limit of this process, of its container or of the machine, or a right
// that a sandbox withholds. Every such message is made here, so that each names the limit, its value and the cure.
#pragma once

#include <cstddef>
#include <string>

#include "smdp/error.h"
#include "smdp/limits.h"

namespace smdp {

class ShortageError : public Error {
 public:
  explicit ShortageError(const std::string& what, bool is_denied = false) : Error(what), is_denied_(is_denied) {}

  // A policy forbids the call. Another way to the same end may be open.
  bool is_denied() const noexcept { return is_denied_; }

 private:
  bool is_denied_;
};

// Whether an errno says so.
bool is_shortage(int error);

// With describe_shortage() as its text.
ShortageError shortage(const std::string& call, const std::string& purpose, int error, std::size_t bytes = 0);

// Throws if the last call has failed for want of something. Other failures are the caller's to explain.
void throw_if_short(const std::string& call, const std::string& purpose);

}  // namespace smdp
