#include "smdp/info.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>

#include "bind.h"
#include "smdp/dtype.h"

namespace nb = nanobind;

namespace smdp {

void bind_info(nb::module_& m) {
  m.def("kernel_name", &active_kernel);
  m.def("kernels", &kernels);
  m.def("core_count", &core_count);
  m.def("build_info", [] {
    return std::map<std::string, std::string>{
        {"version", SMDP_VERSION}, {"compiler", SMDP_COMPILER}, {"build_type", SMDP_BUILD_TYPE}};
  });
  m.def("dtype_size", [](int dtype) { return size_of(static_cast<DType>(dtype)); }, nb::arg("dtype"));
  m.def("dtype_name", [](int dtype) { return std::string(name_of(static_cast<DType>(dtype))); }, nb::arg("dtype"));
}

}  // namespace smdp
