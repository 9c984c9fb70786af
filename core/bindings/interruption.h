// What a thread that waits in C++ polls in Python: Ctrl-C, and whether the program has other threads.
#pragma once

#include "bind.h"
#include "smdp/operation.h"

namespace smdp {

// Returns whether a signal interrupts the wait, in the thread that handles Python's signals. The Python error is then
// set here and thrown by the translator in bindings/error.cpp. Also tells the core whether the program has other
// threads, which might make the calls that other ranks wait for. Called without the GIL.
inline bool is_interrupted() {
  const nanobind::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) return true;
  try {
    note_other_threads(
        nanobind::cast<bool>(nanobind::module_::import_("smdp._other_threads").attr("has_other_threads")()));
  } catch (nanobind::python_error& error) {
    if (error.matches(PyExc_Exception)) return false;  // Python is shutting down
    error.restore();                                   // raised by a signal handler that ran meanwhile
    return true;
  }
  return false;
}

}  // namespace smdp
