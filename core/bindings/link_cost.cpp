#include "smdp/link_cost.h"

#include <nanobind/nanobind.h>

#include <cstddef>

#include "bind.h"

namespace nb = nanobind;

namespace smdp {

void bind_link_cost(nb::module_& m) {
  m.def(
      "transfer_seconds",
      [](double bytes, double latency, double bandwidth) { return cost::transfer(bytes, {latency, bandwidth}); },
      nb::arg("bytes"), nb::kw_only(), nb::arg("latency"), nb::arg("bandwidth"),
      "Returns the seconds of one message over a link.");
  m.def(
      "all_reduce_seconds",
      [](double bytes, std::size_t ranks, double latency, double bandwidth) {
        return cost::all_reduce(bytes, ranks, {latency, bandwidth});
      },
      nb::arg("bytes"), nb::arg("ranks"), nb::kw_only(), nb::arg("latency"), nb::arg("bandwidth"),
      "Returns the seconds of an all_reduce that sends the minimum number of bytes.");
}

}  // namespace smdp
