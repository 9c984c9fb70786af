#include "smdp/observability.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"

namespace nb = nanobind;

namespace smdp {
namespace {

// Converts a time of time.monotonic_ns(), which uses the same clock.
TimePoint at(std::int64_t nanoseconds) { return TimePoint(std::chrono::nanoseconds(nanoseconds)); }

}  // namespace

void bind_observability(nb::module_& m) {
  m.def(
      "operation_counts",
      [] {
        std::vector<std::tuple<std::string, std::string, std::uint64_t, std::uint64_t, double>> rows;
        for (const OperationCount& one : operation_counts()) {
          rows.emplace_back(one.operation, one.algorithm, one.calls, one.bytes, one.seconds);
        }
        return rows;
      },
      "Returns (operation, algorithm, calls, bytes, seconds) over all groups of this process.");
  nb::class_<StepCount>(m, "StepCount", "Steps of all gradient reducers of this process.")
      .def_ro("steps", &StepCount::steps)
      .def_ro("bytes", &StepCount::bytes)
      .def_ro("exposed_seconds", &StepCount::exposed_seconds)
      .def_ro("last_exposed_seconds", &StepCount::last_exposed_seconds)
      .def_ro("input_seconds", &StepCount::input_seconds)
      .def_ro("rank_seconds", &StepCount::rank_seconds)
      .def_ro("slowest", &StepCount::slowest);
  m.def("step_count", &step_count);
  m.def(
      "seconds_computed", [](std::int64_t now_ns) { return seconds_computed(at(now_ns)); }, nb::arg("now_ns"),
      "Returns the seconds since the last call, minus exposed communication. Takes a time of time.monotonic_ns().");
  m.def(
      "count_reduced_step",
      [](const std::string& group, std::uint64_t number, std::size_t bytes, std::int64_t last_end_ns,
         std::int64_t begin_ns, std::int64_t end_ns, const std::vector<double>& rank_seconds) {
        count_reduced_step({group, number, bytes, at(last_end_ns), at(begin_ns), at(end_ns), rank_seconds});
      },
      nb::arg("group"), nb::arg("number"), nb::arg("bytes"), nb::arg("last_end_ns"), nb::arg("begin_ns"),
      nb::arg("end_ns"), nb::arg("rank_seconds"),
      "Counts a step of a framework's own reducer; see observability.h. Takes times of time.monotonic_ns().");
  m.def(
      "count_input", [](std::int64_t begin_ns, std::int64_t end_ns) { count_input(at(begin_ns), at(end_ns)); },
      nb::arg("begin_ns"), nb::arg("end_ns"), "Counts a wait for input data. Takes times of time.monotonic_ns().");
  m.def("trace_is_on", &trace::is_on);
  m.def("trace_set_limit", &trace::set_limit, nb::arg("bytes"));
  m.def(
      "trace_span",
      [](const std::string& track, const std::string& category, const std::string& name, std::int64_t begin_ns,
         std::int64_t end_ns) { trace::span(track, category, name, at(begin_ns), at(end_ns)); },
      nb::arg("track"), nb::arg("category"), nb::arg("name"), nb::arg("begin_ns"), nb::arg("end_ns"));
}

}  // namespace smdp
