#include "smdp/arrival.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "bind.h"
#include "released.h"

namespace nb = nanobind;

namespace smdp {

void bind_arrival(nb::module_& m) {
  nb::class_<Arrival>(m, "Arrival", "Values that are still on their way when an operation is asked for.")
      // Owned by C++: a thread of ours that drops the last one must not ask for the GIL.
      .def(nb::new_([] { return std::make_shared<Arrival>(); }))
      .def("arrive", &Arrival::arrive, nb::call_guard<Released>(), "The values are in place. Once.");
}

}  // namespace smdp
