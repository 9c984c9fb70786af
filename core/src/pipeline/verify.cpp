#include "smdp/pipeline/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "common/argument.h"
#include "pipeline/checks/checks.h"
#include "pipeline/surroundings.h"

namespace smdp::pipeline {
namespace {

constexpr std::array<std::string_view, 10> kCheckNames{"empty_stages",     "completeness", "placement", "local_order",
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
    refuse("memory_cap", shown(*options.memory_cap), "a finite number of bytes, 0 or above");
  }
  check_count("buffers", options.buffers, 1, kLargestCount, "; use the rendezvous transport for none");
  check_count("active_microbatches", options.active_microbatches, 0, kLargestCount, "; 0: no limit");
  if (options.transports.empty()) refuse("transports", "[]", "at least one of rendezvous, buffered, single_stream");
  for (const auto* others : {&options.replicas, &options.alternates}) {
    for (const Schedule& other : *others) check_shape(other);
  }
  for (std::size_t i = 0; i < options.replicas.size(); ++i) {
    if (options.replicas[i].ranks() == schedule.ranks()) continue;
    refuse("replicas[" + std::to_string(i) + "]",
           "a schedule of " + std::to_string(options.replicas[i].ranks()) + " ranks",
           "schedules of " + std::to_string(schedule.ranks()) + " ranks, like the schedule to verify");
  }
}

std::string describe(Check check, const Schedule& schedule, const Violation& violation, const std::string& what,
                     const std::string& rows) {
  std::string text = "[smdp] schedule '" + shown(schedule.name) + "' breaks " + std::string(name_of(check)) +
                     ": rank " + std::to_string(violation.rank);
  if (violation.stage >= 0) text += ", stage " + std::to_string(violation.stage);
  if (violation.microbatch >= 0) text += ", microbatch " + std::to_string(violation.microbatch);
  return text + ", " + violation.action + ": " + what + "." + rows;
}

}  // namespace

std::string_view name_of(Check check) {
  const auto index = static_cast<std::size_t>(check);
  return index < kCheckNames.size() ? kCheckNames[index] : "?";
}

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  for (std::size_t i = 0; i < kCheckNames.size(); ++i) checks.push_back(static_cast<Check>(i));
  return checks;
}

Check parse_check(std::string_view name) {
  std::string names;
  for (const Check check : all_checks()) {
    if (name_of(check) == name) return check;
    names += (names.empty() ? "" : ", ") + std::string(name_of(check));
  }
  refuse("check", "'" + shown(name) + "'", names);
}

Transport parse_transport(std::string_view name) {
  if (name == "rendezvous") return Transport::kRendezvous;
  if (name == "buffered") return Transport::kBuffered;
  if (name == "single_stream") return Transport::kSingleStream;
  refuse("transport", "'" + shown(name) + "'", "rendezvous, buffered, single_stream");
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
  // Where it would belong: next to the row's other actions on the same microbatch.
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
