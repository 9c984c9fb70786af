#include "smdp/partition.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "released.h"

namespace nb = nanobind;

namespace smdp {

using namespace partition;

namespace {

using UnitTuple = std::tuple<std::string, double, double, double, double, double, double, int>;
using TiedTuple = std::tuple<double, std::vector<std::size_t>>;

Partition partition_units(const std::vector<UnitTuple>& units, const std::vector<TiedTuple>& tied, int ranks,
                          int virtual_stages, std::vector<int> rank_of, int microbatches, std::string schedule,
                          int active_microbatches, std::string algorithm, double memory_cap, double state_factor,
                          double memory_weight, bool is_tied_together, double latency, double bandwidth) {
  Problem problem;
  for (const auto& [name, forward, input, weight, parameters, activations, cut, stage] : units) {
    problem.units.push_back({name, forward, input, weight, parameters, activations, cut, stage});
  }
  for (const auto& [bytes, members] : tied) problem.tied.push_back({bytes, members});
  problem.ranks = ranks;
  problem.virtual_stages = virtual_stages;
  problem.rank_of = std::move(rank_of);
  problem.microbatches = microbatches;
  problem.schedule = std::move(schedule);
  problem.active_microbatches = active_microbatches;
  problem.algorithm = std::move(algorithm);
  problem.memory_cap = memory_cap;
  problem.state_factor = state_factor;
  problem.memory_weight = memory_weight;
  problem.is_tied_together = is_tied_together;
  problem.latency = latency;
  problem.bandwidth = bandwidth;
  return partition::partition(problem);
}

}  // namespace

void bind_partition(nb::module_& m) {
  nb::class_<Stage>(m, "PartitionStage", "One stage of a partition; smdp/partition.h explains its fields.")
      .def_ro("units", &Stage::units, "Indices of its units, contiguous except for SMP's algorithm.")
      .def_ro("rank", &Stage::rank)
      .def_ro("forward", &Stage::forward, "Seconds per microbatch.")
      .def_ro("backward_input", &Stage::backward_input)
      .def_ro("backward_weight", &Stage::backward_weight)
      .def_prop_ro("seconds", &Stage::seconds, "Sum of the three.")
      .def_ro("parameter_bytes", &Stage::parameter_bytes)
      .def_ro("activation_bytes", &Stage::activation_bytes, "Bytes of one microbatch.")
      .def_ro("memory_bytes", &Stage::memory_bytes,
              "Bytes of the states, and of the activations of the microbatches in flight.")
      .def_ro("cut_bytes", &Stage::cut_bytes, "Bytes sent to the next stage.");
  nb::class_<Partition>(m, "Partition", "A model cut into stages; smdp/partition.h explains its fields.")
      .def_ro("stages", &Partition::stages)
      .def_ro("bottleneck", &Partition::bottleneck, "Seconds of the slowest stage.")
      .def_ro("step", &Partition::step, "Seconds of a step, simulated; 0 for SMP's algorithm.")
      .def_ro("bubble", &Partition::bubble, "Idle fraction of all ranks' time, simulated.")
      .def_ro("peak_bytes", &Partition::peak_bytes, "Bytes per rank.")
      .def_ro("schedule", &Partition::schedule,
              "The schedule that was simulated; under a cap another one may replace auto.")
      .def_ro("activation_cap", &Partition::activation_cap,
              "Bytes of activations per rank that auto was allowed; 0: no cap.")
      .def_ro("reason", &Partition::reason, "One sentence that explains the result.");
  m.def("partition_units", &partition_units, nb::arg("units"), nb::arg("tied"), nb::kw_only(), nb::arg("ranks"),
        nb::arg("virtual_stages"), nb::arg("rank_of"), nb::arg("microbatches"), nb::arg("schedule"),
        nb::arg("active_microbatches"), nb::arg("algorithm"), nb::arg("memory_cap"), nb::arg("state_factor"),
        nb::arg("memory_weight"), nb::arg("is_tied_together"), nb::arg("latency"), nb::arg("bandwidth"),
        nb::call_guard<Released>());
}

}  // namespace smdp
