#include <nanobind/nanobind.h>

#include <cstdint>

#include "bind.h"

namespace nb = nanobind;

namespace smdp {
namespace {

// NumPy's array interface, version 3, as its documentation defines it. The capsule `__array_struct__` holds one.
struct ArrayInterface {
  int two;
  int dimensions;
  char kind;
  int itemsize;
  int flags;
  const Py_ssize_t* shape;
  const Py_ssize_t* strides;
  void* data;
};

}  // namespace

void bind_arrays(nb::module_& m) {
  m.def(
      "address_of",
      [](const nb::capsule& array_struct) {
        const auto* array = static_cast<const ArrayInterface*>(array_struct.data());
        if (array == nullptr || array->two != 2)
          throw nb::type_error("[smdp] the argument is not an __array_struct__ capsule of NumPy's array interface");
        return reinterpret_cast<std::uintptr_t>(array->data);
      },
      nb::arg("array_struct"));
}

}  // namespace smdp
