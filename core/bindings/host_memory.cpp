#include "smdp/host_memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>

#include "bind.h"
#include "interruption.h"
#include "released.h"

namespace nb = nanobind;

namespace smdp {

void bind_host_memory(nb::module_& m) {
  using Release = nb::call_guard<Released>;
  nb::class_<HostMemory>(m, "HostMemory", "Memory that exists once per host. Making it is collective.")
      .def(
          "__init__",
          [](HostMemory* self, Group& group, std::size_t bytes) {
            new (self) HostMemory(group, bytes, is_interrupted);
          },
          nb::arg("group"), nb::arg("bytes"), Release())
      .def_prop_ro("data", [](const HostMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); })
      .def_prop_ro("size", &HostMemory::size)
      .def(
          "await_host", [](HostMemory& memory) { memory.await_host(is_interrupted); }, Release(),
          "Blocks until all ranks of this host have called it.")
      .def("abort", &HostMemory::abort, nb::arg("reason"), Release(),
           "Ends `await_host()` on all ranks of this host with this reason.");
}

}  // namespace smdp
