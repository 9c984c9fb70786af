// Ctrl-C during long waits in C++: asked for now and then, in the thread that Python's signals belong to.
#pragma once

#include "bind.h"

namespace smdp {

// The error is set in Python here, and thrown by the translator of bindings/error.cpp. Without the GIL.
inline bool is_interrupted() {
  const nanobind::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace smdp
