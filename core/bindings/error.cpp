#include "error.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "smdp/error.h"

namespace nb = nanobind;

namespace smdp {
namespace {

const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kTimeout:
      return "TimeoutError";
    case ErrorKind::kPeerLost:
      return "PeerLostError";
    case ErrorKind::kMismatch:
      return "MismatchError";
    case ErrorKind::kConfig:
      return "ConfigError";
    case ErrorKind::kClosed:
      return "ClosedError";
    case ErrorKind::kInternal:
      break;
  }
  return "SmdpError";
}

nb::object make(const Error& error) {
  const nb::object type = nb::module_::import_("smdp._errors").attr(class_of(error.kind()));
  if (const auto* lost = dynamic_cast<const PeerLostError*>(&error)) return type(error.what(), lost->ranks());
  return type(error.what());
}

}  // namespace

nb::object to_python(const std::exception_ptr& error) {
  if (!error) return nb::none();
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return make(e);
  } catch (const std::exception& e) {
    return make(Error(e.what()));
  }
}

void bind_error(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      if (PyErr_Occurred() != nullptr) return;  // KeyboardInterrupt or a similar exception ended the call
      try {
        const nb::object exception = make(e);
        PyErr_SetObject(exception.type().ptr(), exception.ptr());
      } catch (nb::python_error& other) {  // raised while the exception's own code ran
        other.restore();
      }
    }
  });
}

}  // namespace smdp
