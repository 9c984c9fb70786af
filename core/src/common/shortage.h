// System calls that fail because of a limit of this process, of its container or of the machine, or because a sandbox
// denies a right. All such messages are made here, so that each names the limit, its value and the fix.
#pragma once

#include <cstddef>
#include <string>

#include "smdp/error.h"
#include "smdp/limits.h"

namespace smdp {

class ShortageError : public Error {
 public:
  explicit ShortageError(const std::string& what, bool is_denied = false) : Error(what), is_denied_(is_denied) {}

  // Returns whether a policy forbids the call. There may be another way to the same goal.
  bool is_denied() const noexcept { return is_denied_; }

 private:
  bool is_denied_;
};

// Returns whether an errno is one of these.
bool is_shortage(int error);

// Returns the error with describe_shortage() as its text.
ShortageError shortage(const std::string& call, const std::string& purpose, int error, std::size_t bytes = 0);

// Throws if the last call failed because of a shortage. The caller must explain other failures.
void throw_if_short(const std::string& call, const std::string& purpose);

}  // namespace smdp
