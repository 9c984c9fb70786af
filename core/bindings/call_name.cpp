#include "smdp/call_name.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bind.h"

namespace nb = nanobind;

namespace smdp {

void bind_call_name(nb::module_& m) {
  m.def("set_call_name", &set_call_name, nb::arg("name"));
  m.def("call_name", &call_name);
}

}  // namespace smdp
