#include "partition/check.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "common/argument.h"
#include "smdp/pipeline/generate.h"

namespace smdp::partition {
namespace {

constexpr std::size_t kMostUnits = 4096;
constexpr int kMostRanks = 4096;
constexpr std::ptrdiff_t kDeepest = 256;

void check_unit(const Unit& unit, const std::string& place, int stages) {
  if (unit.name.empty()) refuse(place + ".name", "''", "a name that is not empty");
  if (std::count(unit.name.begin(), unit.name.end(), '.') > kDeepest) {
    refuse(place + ".name", "'" + shown(unit.name) + "...'", "at most " + std::to_string(kDeepest) + " dots");
  }
  check_amount(place + ".forward", unit.forward);
  check_amount(place + ".backward_input", unit.backward_input);
  check_amount(place + ".backward_weight", unit.backward_weight);
  check_amount(place + ".parameter_bytes", unit.parameter_bytes);
  check_amount(place + ".activation_bytes", unit.activation_bytes);
  check_amount(place + ".cut_bytes", unit.cut_bytes);
  check_count((place + ".stage").c_str(), unit.stage, -1, stages - 1);
}

void check_units(const Problem& problem, int stages) {
  const Unit* pinned = nullptr;
  for (std::size_t i = 0; i < problem.units.size(); ++i) {
    const Unit& unit = problem.units[i];
    const std::string place = "units[" + std::to_string(i) + "]";
    check_unit(unit, place, stages);
    if (unit.stage < 0) continue;
    if (problem.algorithm == "smp") {
      refuse(place + ".stage", std::to_string(unit.stage), "none, with the algorithm smp");
    }
    if (pinned != nullptr && unit.stage < pinned->stage) {
      refuse(place + ".stage", std::to_string(unit.stage),
             std::to_string(pinned->stage) + " or more, because '" + shown(pinned->name) +
                 "', which runs before it, is on that stage");
    }
    pinned = &unit;
  }
}

// If rank_of is given, only the pins determine the units of a stage.
void check_rank_of(const Problem& problem) {
  if (problem.rank_of.empty()) return;
  if (problem.virtual_stages != 1 || problem.algorithm != "pipeline" || problem.memory_cap > 0) {
    refuse("rank_of", "given", "only with the algorithm pipeline, without virtual_stages and memory_cap");
  }
  int next = 0;
  for (std::size_t i = 0; i < problem.units.size(); ++i) {
    const int stage = problem.units[i].stage;
    if (stage == next) ++next;
    if (stage != next - 1) {
      refuse("units[" + std::to_string(i) + "].stage", std::to_string(stage),
             "with rank_of, a stage for every unit, numbered from 0 without gaps");
    }
  }
  check_count("stages of units", next, static_cast<std::int64_t>(problem.rank_of.size()),
              static_cast<std::int64_t>(problem.rank_of.size()), ", as many as rank_of has ranks");
}

void check_tied(const Problem& problem) {
  std::vector<double> shared(problem.units.size(), 0);
  for (std::size_t i = 0; i < problem.tied.size(); ++i) {
    const Tied& group = problem.tied[i];
    const std::string place = "tied[" + std::to_string(i) + "]";
    check_amount(place + ".bytes", group.bytes);
    if (group.units.size() < 2) refuse(place + ".units", std::to_string(group.units.size()) + " entries", "2 or more");
    for (std::size_t k = 0; k < group.units.size(); ++k) {
      const std::size_t unit = group.units[k];
      if (unit >= problem.units.size() || (k > 0 && unit <= group.units[k - 1])) {
        refuse(place + ".units[" + std::to_string(k) + "]", std::to_string(unit),
               "indices of units, 0 to " + std::to_string(problem.units.size() - 1) + ", ascending");
      }
      shared[unit] += group.bytes;
      // Doubles that were added in a different order may differ in their last digits.
      if (shared[unit] > problem.units[unit].parameter_bytes * (1 + 1e-9)) {
        refuse(place + ".bytes", shown(group.bytes),
               "no more than the parameter_bytes of '" + shown(problem.units[unit].name) + "', " +
                   shown(problem.units[unit].parameter_bytes));
      }
    }
  }
}

void check_schedule(const Problem& problem) {
  std::string known;
  for (const pipeline::ScheduleInfo& info : pipeline::schedule_names()) {
    if (info.name == problem.schedule) known = problem.schedule;
  }
  if (known.empty()) pipeline::generate(problem.schedule, {});  // its error lists the schedules
  if (problem.virtual_stages == 1) return;
  if (problem.algorithm == "smp") {
    refuse("virtual_stages", std::to_string(problem.virtual_stages), "1, with the algorithm smp");
  }
  if (problem.algorithm != "pipeline" && problem.memory_cap > 0) {
    refuse("memory_cap", shown(problem.memory_cap),
           "0, with the algorithm " + problem.algorithm + " and several stages per rank: only pipeline simulates them");
  }
}

}  // namespace

void check(const Problem& problem) {
  if (problem.units.empty() || problem.units.size() > kMostUnits) {
    refuse("units", std::to_string(problem.units.size()) + " entries", "1 to " + std::to_string(kMostUnits));
  }
  check_count("ranks", problem.ranks, 1, kMostRanks);
  check_count("virtual_stages", problem.virtual_stages, 1, kMostRanks);
  check_count("microbatches", problem.microbatches, 1, std::int64_t{1} << 30);
  check_count("active_microbatches", problem.active_microbatches, 0, std::int64_t{1} << 30);
  check_amount("memory_cap", problem.memory_cap);
  check_amount("state_factor", problem.state_factor);
  check_amount("memory_weight", problem.memory_weight, 1);
  check_amount("latency", problem.latency);
  check_amount("bandwidth", problem.bandwidth);
  constexpr const char* kAlgorithms[] = {"pipeline", "sum", "bottleneck", "smp"};
  if (std::find(std::begin(kAlgorithms), std::end(kAlgorithms), problem.algorithm) == std::end(kAlgorithms)) {
    refuse("algorithm", "'" + shown(problem.algorithm) + "'", "pipeline, sum, bottleneck, smp");
  }
  const auto stages = problem.rank_of.empty() ? std::int64_t{problem.ranks} * problem.virtual_stages
                                              : static_cast<std::int64_t>(problem.rank_of.size());
  const auto units = static_cast<std::int64_t>(problem.units.size());
  if (stages > units) {
    refuse("ranks x virtual_stages", std::to_string(problem.ranks) + " x " + std::to_string(problem.virtual_stages),
           "at most " + std::to_string(units) + ", because there are that many units and every stage needs one");
  }
  check_units(problem, static_cast<int>(stages));
  check_rank_of(problem);
  check_schedule(problem);
  check_tied(problem);
}

}  // namespace smdp::partition
