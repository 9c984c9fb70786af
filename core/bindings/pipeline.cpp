#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "released.h"
#include "smdp/pipeline/formats.h"
#include "smdp/pipeline/generate.h"
#include "smdp/pipeline/lowering.h"
#include "smdp/pipeline/simulate.h"
#include "smdp/pipeline/verify.h"

namespace nb = nanobind;

namespace smdp {
namespace {

using pipeline::Costs;
using pipeline::Schedule;
using pipeline::Simulation;
using pipeline::Violation;
using Release = nb::call_guard<Released>;

std::vector<std::vector<std::string>> rows_of(const Schedule& schedule) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& row : schedule.rows) {
    std::vector<std::string> texts;
    for (const pipeline::Action& action : row) texts.push_back(to_text(schedule, action));
    rows.push_back(std::move(texts));
  }
  return rows;
}

std::optional<std::string> placement_name(const pipeline::ScheduleInfo& info) {
  if (!info.placement) return std::nullopt;
  return std::string(name_of(*info.placement));
}

void bind_data(nb::module_& m) {
  nb::class_<Schedule>(m, "PipelineSchedule", "Rows of actions; smdp.pipeline.Schedule wraps it.")
      .def_ro("name", &Schedule::name)
      .def_ro("microbatches", &Schedule::microbatches)
      .def_ro("forward_only", &Schedule::forward_only)
      .def_ro("rank_of", &Schedule::rank_of)
      .def_ro("skip_edges", &Schedule::skip_edges)
      .def_ro("tied", &Schedule::tied)
      .def_prop_ro("ranks", &Schedule::ranks)
      .def_prop_ro("stages", &Schedule::stages)
      .def("rows", rows_of, "Returns the actions as text.")
      .def(
          "with_skip_edges",
          [](const Schedule& schedule, const std::vector<std::pair<int, int>>& edges) {
            Schedule result = schedule;
            result.skip_edges = edges;
            check_shape(result);
            return result;
          },
          nb::arg("edges"))
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
  nb::class_<Costs>(m, "PipelineCosts", "Times and bytes per virtual stage; see costs.h.")
      .def(
          "__init__",
          [](Costs* self, std::vector<double> forward, std::vector<double> backward_input,
             std::vector<double> backward_weight, std::vector<double> activation_bytes, std::vector<double> stash_bytes,
             std::vector<double> receive_bytes, double hop, double unshard, double reduce_grad, double reduce_tied,
             double reduce_norm, double offload, double reload) {
            new (self) Costs{std::move(forward),
                             std::move(backward_input),
                             std::move(backward_weight),
                             std::move(activation_bytes),
                             std::move(stash_bytes),
                             std::move(receive_bytes),
                             hop,
                             unshard,
                             reduce_grad,
                             reduce_tied,
                             reduce_norm,
                             offload,
                             reload};
          },
          nb::kw_only(), nb::arg("forward"), nb::arg("backward_input"), nb::arg("backward_weight"),
          nb::arg("activation_bytes"), nb::arg("stash_bytes") = std::vector<double>{},
          nb::arg("receive_bytes") = std::vector<double>{}, nb::arg("hop") = 0.0, nb::arg("unshard") = 0.0,
          nb::arg("reduce_grad") = 0.0, nb::arg("reduce_tied") = 0.0, nb::arg("reduce_norm") = 0.0,
          nb::arg("offload") = 0.0, nb::arg("reload") = 0.0);
  nb::class_<Simulation>(m, "PipelineSimulation", "The result of simulate(); see simulate.h.")
      .def_ro("makespan", &Simulation::makespan)
      .def_ro("span", &Simulation::span)
      .def_ro("bubble", &Simulation::bubble)
      .def_ro("work", &Simulation::work)
      .def_ro("peak_activations", &Simulation::peak_activations)
      .def_ro("peak_action", &Simulation::peak_action)
      .def(
          "timeline",
          [](const Simulation& simulation) {
            std::vector<std::vector<std::pair<double, double>>> rows;
            for (const auto& row : simulation.timeline) {
              auto& times = rows.emplace_back();
              for (const pipeline::Interval& one : row) times.emplace_back(one.start, one.end);
            }
            return rows;
          },
          "Returns (start, end) of every action of every row.")
      .def(
          "links",
          [](const Simulation& simulation) {
            std::vector<std::tuple<int, int, long, double>> links;
            for (const pipeline::LinkUse& link : simulation.links) {
              links.emplace_back(link.from, link.to, link.transfers, link.busy);
            }
            return links;
          },
          "Returns (from rank, to rank, transfers, busy seconds) of every link.");
  nb::class_<Violation>(m, "PipelineViolation", "A violation found by verify().")
      .def_prop_ro("check", [](const Violation& violation) { return std::string(name_of(violation.check)); })
      .def_ro("rank", &Violation::rank)
      .def_ro("stage", &Violation::stage)
      .def_ro("microbatch", &Violation::microbatch)
      .def_ro("action", &Violation::action)
      .def_ro("message", &Violation::message);
}

void bind_passes(nb::module_& m) {
  m.def("pipeline_add_unshard_reshard", &pipeline::add_unshard_reshard, nb::arg("schedule"), nb::arg("unshard"),
        Release());
  m.def("pipeline_add_offload", &pipeline::add_offload, nb::arg("schedule"), nb::arg("stages"),
        nb::arg("offload_horizon"), Release());
  m.def("pipeline_add_reduce_grad", &pipeline::add_reduce_grad, nb::arg("schedule"), Release());
  m.def("pipeline_add_tied_reductions", &pipeline::add_tied_reductions, nb::arg("schedule"), nb::arg("groups"),
        Release());
  m.def("pipeline_add_reduce_norm", &pipeline::add_reduce_norm, nb::arg("schedule"), Release());
  m.def(
      "pipeline_add_send_recv",
      [](const Schedule& schedule, const std::vector<std::tuple<int, int, std::string>>& payloads) {
        std::vector<pipeline::EdgePayload> all;
        for (const auto& [source, target, payload] : payloads) all.push_back({source, target, payload});
        return add_send_recv(schedule, all);
      },
      nb::arg("schedule"), nb::arg("payloads"),
      "`payloads` lists (source stage, target stage, dtype and shape as text).", Release());
}

void bind_formats(nb::module_& m) {
  m.def("pipeline_to_csv", &pipeline::to_csv, nb::arg("schedule"), Release());
  m.def("pipeline_from_csv", &pipeline::from_csv, nb::arg("text"), nb::arg("microbatches") = 0, Release());
  m.def("pipeline_to_json", &pipeline::to_json, nb::arg("schedule"), Release());
  m.def("pipeline_from_json", &pipeline::from_json, nb::arg("text"), Release());
  m.def("pipeline_gantt", &pipeline::gantt, nb::arg("schedule"), nb::arg("simulation"), nb::arg("width"), Release());
  m.def("pipeline_chrome_trace", &pipeline::chrome_trace, nb::arg("schedule"), nb::arg("simulation"), Release());
}

}  // namespace

void bind_pipeline(nb::module_& m) {
  bind_data(m);
  bind_passes(m);
  bind_formats(m);
  m.def(
      "pipeline_schedules",
      [] {
        using Info = std::tuple<std::string, std::string, int, int, std::optional<std::string>, bool, bool>;
        std::vector<Info> infos;
        for (const pipeline::ScheduleInfo& info : pipeline::schedule_names()) {
          infos.emplace_back(info.name, info.description, info.usual_virtual_stages, info.virtual_stages,
                             placement_name(info), info.is_split, info.takes_any_placement);
        }
        return infos;
      },
      "Returns (name, description, usual virtual stages per rank, the only valid number or 0, placement or None, has I "
      "and W, takes any "
      "placement) of every schedule.");
  m.def(
      "pipeline_generate",
      [](const std::string& name, int stages, int microbatches, int virtual_stages, int active_microbatches,
         const std::optional<Costs>& costs, std::optional<double> memory_cap,
         const std::optional<std::string>& placement, std::vector<int> rank_of) {
        pipeline::GenerateOptions options{stages,     microbatches, virtual_stages,    active_microbatches, costs,
                                          memory_cap, {},           std::move(rank_of)};
        if (placement) options.placement = pipeline::parse_placement(*placement);
        return pipeline::generate(name, options);
      },
      nb::arg("name"), nb::kw_only(), nb::arg("stages"), nb::arg("microbatches"), nb::arg("virtual_stages") = 1,
      nb::arg("active_microbatches") = 0, nb::arg("costs") = nb::none(), nb::arg("memory_cap") = nb::none(),
      nb::arg("placement") = nb::none(), nb::arg("rank_of") = std::vector<int>{}, Release());
  m.def("pipeline_simulate", &pipeline::simulate, nb::arg("schedule"), nb::arg("costs"), Release());
  m.def(
      "pipeline_lower_bounds",
      [](const Schedule& schedule, const Costs& costs) {
        const pipeline::LowerBounds bounds = lower_bounds(schedule, costs);
        return std::pair(bounds.makespan, bounds.span);
      },
      nb::arg("schedule"), nb::arg("costs"), "Returns (makespan, span) that no order of the actions can beat.",
      Release());
  m.def(
      "pipeline_verify",
      [](const Schedule& schedule, const std::vector<std::string>& checks, const std::vector<std::string>& transports,
         int buffers, const std::optional<Costs>& costs, std::optional<double> memory_cap, int active_microbatches,
         const std::vector<Schedule>& replicas, const std::vector<Schedule>& alternates) {
        pipeline::VerifyOptions options;
        for (const std::string& check : checks) options.checks.push_back(pipeline::parse_check(check));
        options.transports.clear();
        for (const std::string& transport : transports)
          options.transports.push_back(pipeline::parse_transport(transport));
        options.buffers = buffers;
        options.costs = costs;
        options.memory_cap = memory_cap;
        options.active_microbatches = active_microbatches;
        options.replicas = replicas;
        options.alternates = alternates;
        return verify(schedule, options);
      },
      nb::arg("schedule"), nb::kw_only(), nb::arg("checks"), nb::arg("transports"), nb::arg("buffers") = 1,
      nb::arg("costs") = nb::none(), nb::arg("memory_cap") = nb::none(), nb::arg("active_microbatches") = 0,
      nb::arg("replicas") = std::vector<Schedule>{}, nb::arg("alternates") = std::vector<Schedule>{},
      "Returns the first violation, or None.", Release());
}

}  // namespace smdp
