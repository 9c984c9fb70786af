// Converts C++ exceptions to the Python classes of smdp._errors.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

namespace smdp {

// Returns a new Python exception object for `error`, or None if it is null.
nanobind::object to_python(const std::exception_ptr& error);

}  // namespace smdp
