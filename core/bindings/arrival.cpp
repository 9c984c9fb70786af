#include "smdp/arrival.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "bind.h"
#include "released.h"

namespace nb = nanobind;

namespace smdp {

// C++ owns it: a core thread that drops the last reference must not take the GIL. nanobind would make it own the
// Python object otherwise.
static_assert(nb::detail::has_shared_from_this_v<Arrival>);

void bind_arrival(nb::module_& m) {
  nb::class_<Arrival>(m, "Arrival", "Marks the moment at which the input of a queued operation is complete.")
      .def(nb::new_([] { return std::make_shared<Arrival>(); }))
      .def("arrive", &Arrival::arrive, nb::call_guard<Released>(),
           "Reports that the values are in place. Later calls do nothing.");
}

}  // namespace smdp
