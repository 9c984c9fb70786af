// What a thread that waits in C++ asks Python now and then: Ctrl-C, and whether it is alone.
#pragma once

#include "bind.h"
#include "smdp/operation.h"

namespace smdp {

// Whether the program has other threads that might make the calls which somebody waits for.
inline bool has_company() {
  try {
    return nanobind::cast<bool>(nanobind::module_::import_("smdp._company").attr("has_company")());
  } catch (const nanobind::python_error&) {  // at Python's end
    return true;
  }
}

// Ctrl-C, in the thread that Python's signals belong to: the error is set in Python here, and thrown by the translator
// of bindings/error.cpp. Without the GIL.
inline bool is_interrupted() {
  const nanobind::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) return true;
  note_company(has_company());
  return false;
}

}  // namespace smdp
