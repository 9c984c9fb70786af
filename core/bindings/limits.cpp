#include "smdp/limits.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bind.h"

namespace nb = nanobind;

namespace smdp {

void bind_limits(nb::module_& m) {
  m.def("raise_open_files_limit", &raise_open_files_limit,
        "Raises the soft limit of open files to the hard limit, at most to 65536.");
  m.def("describe_shortage", &describe_shortage, nb::arg("call"), nb::arg("purpose"), nb::arg("error"),
        nb::arg("bytes") = 0, "Explains which limit a system call with this errno reached, and how to raise it.");
}

}  // namespace smdp
