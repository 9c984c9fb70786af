#include "partition/price.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "smdp/error.h"
#include "smdp/link_cost.h"
#include "smdp/memory.h"
#include "smdp/pipeline/generate.h"
#include "smdp/pipeline/simulate.h"

namespace smdp::partition {
namespace {

// Sums over the units of a stage, which may be in any order.
Stage stage_of(const Problem& problem, std::vector<std::size_t> units) {
  Stage stage;
  for (const std::size_t i : units) {
    const Unit& unit = problem.units[i];
    stage.forward += unit.forward;
    stage.backward_input += unit.backward_input;
    stage.backward_weight += unit.backward_weight;
    stage.parameter_bytes += unit.parameter_bytes;
    stage.activation_bytes += unit.activation_bytes;
  }
  for (const Tied& group : problem.tied) {
    const auto shared = std::count_if(group.units.begin(), group.units.end(), [&](std::size_t unit) {
      return std::binary_search(units.begin(), units.end(), unit);
    });
    if (shared > 1) stage.parameter_bytes -= group.bytes * static_cast<double>(shared - 1);
  }
  stage.units = std::move(units);
  return stage;
}

cost::Link link_of(const Problem& problem) { return {problem.latency, problem.bandwidth}; }

// Once per step, for each further stage that uses a group's parameters.
double tied_seconds(const Problem& problem, const std::vector<Stage>& stages) {
  double seconds = 0;
  for (const Tied& group : problem.tied) {
    const auto users = std::count_if(stages.begin(), stages.end(), [&](const Stage& stage) {
      return std::any_of(group.units.begin(), group.units.end(), [&](std::size_t unit) {
        return std::binary_search(stage.units.begin(), stage.units.end(), unit);
      });
    });
    if (users > 1) seconds += cost::all_reduce(group.bytes, 2, link_of(problem)) * static_cast<double>(users - 1);
  }
  return seconds;
}

pipeline::Costs costs_of(const Problem& problem, const std::vector<Stage>& stages) {
  pipeline::Costs costs;
  for (const Stage& stage : stages) {
    costs.forward.push_back(stage.forward);
    costs.backward_input.push_back(stage.backward_input);
    costs.backward_weight.push_back(stage.backward_weight);
    costs.activation_bytes.push_back(stage.activation_bytes);
    // The schedules use one time for all hops: the longest.
    if (&stage != &stages.back()) costs.hop = std::max(costs.hop, cost::transfer(stage.cut_bytes, link_of(problem)));
  }
  return costs;
}

bool has_one_stage_per_rank(const Problem& problem) {
  return problem.virtual_stages == 1 && problem.rank_of.size() <= static_cast<std::size_t>(problem.ranks);
}

// Returns what the cap leaves for activations on the fullest rank; nothing if there is no cap or no space.
std::optional<double> activation_cap(const Problem& problem, const std::vector<Stage>& stages) {
  if (problem.memory_cap == 0) return std::nullopt;
  std::vector<double> states(static_cast<std::size_t>(problem.ranks), 0);
  const std::vector<int> rank_of =
      problem.rank_of.empty() ? pipeline::place(pipeline::Placement::kLoop, problem.ranks, problem.virtual_stages)
                              : problem.rank_of;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    states[static_cast<std::size_t>(rank_of[i])] += problem.state_factor * stages[i].parameter_bytes;
  }
  const double left = problem.memory_cap - *std::max_element(states.begin(), states.end());
  if (left <= 0) return std::nullopt;
  return left;
}

// Makes the schedule, and notes in the partition how.
pipeline::Schedule schedule_of(const Problem& problem, pipeline::GenerateOptions options, Partition& partition) {
  partition.schedule = problem.schedule;
  if (problem.schedule != "auto") return pipeline::generate(problem.schedule, options);
  options.memory_cap = activation_cap(problem, partition.stages);
  if (!options.memory_cap) return pipeline::generate("auto", options);
  try {
    const pipeline::Schedule schedule = pipeline::generate("auto", options);
    partition.activation_cap = *options.memory_cap;
    return schedule;
  } catch (const InvalidArgument&) {
    // One cap for all ranks is too strict if early ranks have few parameters and many activations.
    options.memory_cap.reset();
    if (has_one_stage_per_rank(problem)) partition.schedule = "1f1b";
    return pipeline::generate(partition.schedule, options);
  }
}

void add_bottleneck(Partition& partition) {
  for (const Stage& stage : partition.stages) partition.bottleneck = std::max(partition.bottleneck, stage.seconds());
}

}  // namespace

bool is_sum_exact(const Problem& problem) {
  return problem.virtual_stages == 1 && (problem.schedule == "1f1b" || problem.schedule == "gpipe");
}

std::vector<double> in_flight(const Problem& problem, int ranks) {
  // There is no closed form for auto and evaluation; 1F1B's is the minimum that keeps all ranks busy.
  const bool has_form = problem.schedule != "auto" && problem.schedule != "forward_only";
  const std::string schedule = has_form ? problem.schedule : "1f1b";
  const int virtual_stages = has_form ? problem.virtual_stages : 1;
  std::vector<double> held;
  for (int stage = 0; stage < ranks * problem.virtual_stages; ++stage) {
    // Only the schedule knows the rank of a virtual stage; the first rank holds the most.
    const int rank = problem.virtual_stages == 1 ? stage : 0;
    held.push_back(
        memory::in_flight(schedule, ranks, rank, problem.microbatches, virtual_stages, problem.active_microbatches));
  }
  return held;
}

Partition priced(const Problem& problem, const Spans& spans, const Ends& ends) {
  Partition partition;
  for (std::size_t begin = 0; const std::size_t end : ends) {
    std::vector<std::size_t> units(end - begin);
    std::iota(units.begin(), units.end(), begin);
    partition.stages.push_back(stage_of(problem, std::move(units)));
    partition.stages.back().cut_bytes = end == spans.units() ? 0 : problem.units[end - 1].cut_bytes;
    begin = end;
  }
  add_bottleneck(partition);
  pipeline::GenerateOptions options;
  options.stages = problem.ranks;
  options.virtual_stages = problem.virtual_stages;
  options.rank_of = problem.rank_of;
  options.microbatches = problem.microbatches;
  options.active_microbatches = problem.active_microbatches;
  options.costs = costs_of(problem, partition.stages);
  const pipeline::Schedule schedule = schedule_of(problem, options, partition);
  const pipeline::Simulation simulation = pipeline::simulate(schedule, *options.costs);
  partition.step = simulation.makespan + tied_seconds(problem, partition.stages);
  partition.bubble = simulation.bubble;
  partition.peak_bytes = simulation.peak_activations;
  for (std::size_t i = 0; i < partition.stages.size(); ++i) {
    Stage& stage = partition.stages[i];
    stage.rank = schedule.rank_of[i];
    const auto rank = static_cast<std::size_t>(stage.rank);
    const double states = problem.state_factor * stage.parameter_bytes;
    partition.peak_bytes[rank] += states;
    // Several stages on a rank have one peak of activations together, not one each.
    stage.memory_bytes = has_one_stage_per_rank(problem) ? partition.peak_bytes[rank] : states + stage.activation_bytes;
  }
  return partition;
}

Partition priced(const Problem& problem, const Spans& spans, const std::vector<int>& rank_of) {
  std::vector<std::vector<std::size_t>> units(static_cast<std::size_t>(problem.ranks));
  for (std::size_t i = 0; i < spans.units(); ++i) units[static_cast<std::size_t>(rank_of[i])].push_back(i);
  Partition partition;
  partition.schedule = problem.schedule;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    Stage stage = stage_of(problem, std::move(units[static_cast<std::size_t>(rank)]));
    stage.rank = rank;
    stage.memory_bytes = problem.state_factor * stage.parameter_bytes + stage.activation_bytes;
    for (const std::size_t unit : stage.units) {
      const bool goes_on = unit + 1 < spans.units() && rank_of[unit + 1] != rank;
      if (goes_on) stage.cut_bytes += problem.units[unit].cut_bytes;
    }
    partition.peak_bytes.push_back(stage.memory_bytes);
    partition.stages.push_back(std::move(stage));
  }
  add_bottleneck(partition);
  return partition;
}

double peak(const Partition& partition) {
  return *std::max_element(partition.peak_bytes.begin(), partition.peak_bytes.end());
}

}  // namespace smdp::partition
