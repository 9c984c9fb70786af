// The error of a store in a process forked from its owner.
#pragma once

#include "smdp/error.h"

namespace smdp {

inline ClosedError inherited_store() {
  return ClosedError("[smdp] this store belongs to the parent process; a forked child must make its own.");
}

}  // namespace smdp
