#include "smdp/pipeline/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "pipeline/checks/checks.h"
#include "pipeline/surroundings.h"
#include "smdp/error.h"

namespace smdp::pipeline {
namespace {

constexpr std::array<std::string_view, 10> kNames{"empty_stages",     "completeness", "placement", "local_order",
                                                  "acyclicity",       "matching",     "deadlock",  "memory_cap",
                                                  "collective_order", "alternation"};

Found run(Check check, const Schedule& schedule, const DataEdges& edges, const VerifyOptions& options) {
  switch (check) {
    case Check::kEmptyStages:
      return check_empty_stages(schedule);
    case Check::kCompleteness:
      return check_completeness(schedule);
    case Check::kPlacement:
      return check_placement(schedule);
    case Check::kLocalOrder:
      return check_local_order(schedule, edges);
    case Check::kAcyclicity:
      return check_acyclicity(schedule, edges);
    case Check::kMatching:
      return check_matching(schedule, edges);
    case Check::kDeadlock:
      return check_deadlock(schedule, edges, options);
    case Check::kMemoryCap:
      return check_memory_cap(schedule, options);
    case Check::kCollectiveOrder:
      return check_collective_order(schedule, options);
    case Check::kAlternation:
      return check_alternation(schedule, options);
  }
  return std::nullopt;
}

void check_options(const Schedule& schedule, const VerifyOptions& options) {
  if (options.costs) check_costs(*options.costs, schedule.stages());
  if (options.memory_cap && !(std::isfinite(*options.memory_cap) && *options.memory_cap >= 0)) {
    throw InvalidArgument("[smdp] memory_cap=" + std::to_string(*options.memory_cap) +
                          " is not valid; allowed: a finite number of bytes, 0 or above.");
  }
  if (options.buffers < 1) {
    throw InvalidArgument("[smdp] buffers=" + std::to_string(options.buffers) +
                          " is not valid; allowed: 1 or more (none is the rendezvous transport).");
  }
  if (options.active_microbatches < 0) {
    throw InvalidArgument("[smdp] active_microbatches=" + std::to_string(options.active_microbatches) +
                          " is not valid; allowed: 0 (any) or more.");
  }
  for (const auto* others : {&options.replicas, &options.alternates}) {
    for (const Schedule& other : *others) check_shape(other);
  }
}

std::string describe(Check check, const Schedule& schedule, const Violation& violation, const std::string& what,
                     const std::string& rows) {
  std::string text = "[smdp] schedule '" + schedule.name + "' breaks " + std::string(name_of(check)) + ": rank " +
                     std::to_string(violation.rank);
  if (violation.stage >= 0) text += ", stage " + std::to_string(violation.stage);
  if (violation.microbatch >= 0) text += ", microbatch " + std::to_string(violation.microbatch);
  return text + ", " + violation.action + ": " + what + "." + rows;
}

}  // namespace

std::string_view name_of(Check check) {
  const auto index = static_cast<std::size_t>(check);
  return index < kNames.size() ? kNames[index] : "?";
}

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  for (std::size_t i = 0; i < kNames.size(); ++i) checks.push_back(static_cast<Check>(i));
  return checks;
}

Violation violation_at(Check check, const Schedule& schedule, int rank, int index, const std::string& what) {
  const Action& action = schedule.rows[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)];
  Violation violation{check, rank, action.stage, action.microbatch, to_text(action), ""};
  violation.message = describe(check, schedule, violation, what, surroundings(schedule, rank, index));
  return violation;
}

Violation violation_of(Check check, const Schedule& schedule, int rank, const Action& missing,
                       const std::string& what) {
  Violation violation{check, rank, missing.stage, missing.microbatch, to_text(missing), ""};
  // Where it would belong: beside what the row does with the same microbatch.
  const auto& row = schedule.rows[static_cast<std::size_t>(rank)];
  const auto near = std::find_if(row.begin(), row.end(), [&](const Action& action) {
    return action.stage == missing.stage && action.microbatch == missing.microbatch;
  });
  const auto index = static_cast<int>(near == row.end() ? -1 : near - row.begin());
  violation.message = describe(check, schedule, violation, what, surroundings(schedule, rank, index));
  return violation;
}

bool has_transfers(const Schedule& schedule) {
  return std::any_of(schedule.rows.begin(), schedule.rows.end(), [](const auto& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& action) { return is_transfer(action.kind); });
  });
}

bool is_in_range(const Schedule& schedule, const Action& action) {
  if (action.stage < 0 || action.stage >= schedule.stages()) return false;
  const bool has_microbatch = (is_compute(action.kind) && action.kind != ActionKind::kOverlap) ||
                              is_transfer(action.kind) || action.kind == ActionKind::kOffload ||
                              action.kind == ActionKind::kReload;
  return !has_microbatch || (action.microbatch >= 0 && action.microbatch < schedule.microbatches);
}

std::optional<Violation> verify(const Schedule& schedule, const VerifyOptions& options) {
  check_shape(schedule);
  check_options(schedule, options);
  const DataEdges edges(schedule);
  for (const Check check : options.checks.empty() ? all_checks() : options.checks) {
    if (Found found = run(check, schedule, edges, options)) return found;
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
