// C++ exceptions as the Python classes of smdp._errors.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

namespace smdp {

// A new Python exception object for `error`.
nanobind::object to_python(const std::exception_ptr& error);

}  // namespace smdp
