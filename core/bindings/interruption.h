// What a thread that waits in C++ asks Python now and then: Ctrl-C, and whether it is alone.
#pragma once

#include "bind.h"
#include "smdp/operation.h"

namespace smdp {

// Ctrl-C, in the thread that Python's signals belong to: the error is set in Python here, and thrown by the translator
// of bindings/error.cpp. Tells the core besides whether the program has other threads that might make the calls which
// somebody waits for. Without the GIL.
inline bool is_interrupted() {
  const nanobind::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) return true;
  try {
    note_other_threads(
        nanobind::cast<bool>(nanobind::module_::import_("smdp._other_threads").attr("has_other_threads")()));
  } catch (nanobind::python_error& error) {
    if (error.matches(PyExc_Exception)) return false;  // at Python's end
    error.restore();                                   // of a signal's handler that ran meanwhile
    return true;
  }
  return false;
}

}  // namespace smdp
