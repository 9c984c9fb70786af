#include "smdp/simulation.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bind.h"

namespace nb = nanobind;

namespace smdp {

void bind_simulation(nb::module_& m) {
  nb::class_<DdpPrediction>(m, "DdpPrediction", "The prediction of simulate_ddp() for a step.")
      .def_ro("step_seconds", &DdpPrediction::step_seconds)
      .def_ro("compute_seconds", &DdpPrediction::compute_seconds)
      .def_ro("communication_seconds", &DdpPrediction::communication_seconds)
      .def_ro("exposed_seconds", &DdpPrediction::exposed_seconds)
      .def_ro("efficiency", &DdpPrediction::efficiency)
      .def_ro("buffers", &DdpPrediction::buffers);
  m.def(
      "simulate_ddp",
      [](const std::vector<std::tuple<double, double, std::vector<std::size_t>>>& layers, std::size_t hosts,
         std::size_t ranks_per_host, double bandwidth, double hop_seconds, const std::string& compression,
         double topk_ratio, std::size_t buffer_bytes, const std::string& algorithm) {
        std::vector<Layer> list;
        for (const auto& [forward, backward, parameters] : layers) list.push_back({forward, backward, parameters});
        return simulate_ddp(list, {hosts, ranks_per_host, bandwidth, hop_seconds, parse_compression(compression),
                                   topk_ratio, buffer_bytes, algorithm});
      },
      nb::arg("layers"), nb::kw_only(), nb::arg("hosts"), nb::arg("ranks_per_host"), nb::arg("bandwidth"),
      nb::arg("hop_seconds") = DdpSetting{}.hop_seconds, nb::arg("compression") = "none",
      nb::arg("topk_ratio") = DdpSetting{}.topk_ratio, nb::arg("buffer_bytes") = DdpSetting{}.buffer_bytes,
      nb::arg("algorithm") = "auto",
      "Predicts a step of data-parallel training. `layers` lists (forward seconds, backward seconds, elements of each "
      "parameter).");
}

}  // namespace smdp
