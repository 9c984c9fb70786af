// What a store answers in a forked child of the process that made it.
#pragma once

#include "smdp/error.h"

namespace smdp {

inline ClosedError inherited_store() {
  return ClosedError("[smdp] this store belongs to the parent process; a forked child must make its own.");
}

}  // namespace smdp
