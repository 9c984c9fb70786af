// Computations: per stage and microbatch one F, and one B, or one I and one W. Reductions: a schedule may leave
// gradients to its caller. If it has a REDUCE_GRAD, every stage needs one; if it has a REDUCE_NORM, every rank needs
// one; and once it is lowered, every rank with a stage of a tied group needs one REDUCE_TIED.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/checks/checks.h"

namespace smdp::pipeline {
namespace {

constexpr std::uint8_t bit(ActionKind kind) { return static_cast<std::uint8_t>(1U << static_cast<unsigned>(kind)); }

constexpr std::uint8_t kF = bit(ActionKind::kForward);
constexpr std::uint8_t kI = bit(ActionKind::kBackwardInput);
constexpr std::uint8_t kW = bit(ActionKind::kBackwardWeight);
constexpr std::uint8_t kB = bit(ActionKind::kBackward);

// Returns what is missing from the kinds that a stage has run on a microbatch.
std::optional<ActionKind> missing_from(std::uint8_t seen, bool is_forward_only) {
  if ((seen & kF) == 0) return ActionKind::kForward;
  if (is_forward_only || (seen & kB) != 0) return std::nullopt;
  if ((seen & (kI | kW)) == 0) return ActionKind::kBackward;
  if ((seen & kI) == 0) return ActionKind::kBackwardInput;
  if ((seen & kW) == 0) return ActionKind::kBackwardWeight;
  return std::nullopt;
}

constexpr ActionKind kReduceGrad = ActionKind::kReduceGrad;
constexpr ActionKind kReduceTied = ActionKind::kReduceTied;

Found check_reduce_grad(const Schedule& schedule) {
  std::vector<char> seen(schedule.rank_of.size(), 0);
  bool is_any = false;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      if (row[at(index)].kind != kReduceGrad) continue;
      char& cell = seen[at(row[at(index)].stage)];
      if (cell != 0) {
        return violation_at(Check::kCompleteness, schedule, rank, index,
                            "a duplicate: a stage's gradients are reduced once");
      }
      cell = 1;
      is_any = true;
    }
  }
  for (int stage = 0; is_any && stage < schedule.stages(); ++stage) {
    if (seen[at(stage)] != 0) continue;
    return violation_of(
        Check::kCompleteness, schedule, schedule.rank_of[at(stage)], {.kind = kReduceGrad, .stage = stage},
        "no row contains it, although other stages' gradients are reduced; a schedule must reduce all of them or none");
  }
  return std::nullopt;
}

Found check_reduce_norm(const Schedule& schedule) {
  constexpr auto is_norm = [](const Action& action) { return action.kind == ActionKind::kReduceNorm; };
  int without = -1;
  bool is_any = false;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    const auto first = std::find_if(row.begin(), row.end(), is_norm);
    if (first == row.end()) {
      if (without < 0) without = rank;
      continue;
    }
    is_any = true;
    const auto second = std::find_if(first + 1, row.end(), is_norm);
    if (second == row.end()) continue;
    return violation_at(Check::kCompleteness, schedule, rank, static_cast<int>(second - row.begin()),
                        "a duplicate: a rank enters the reduction of the gradients' norm once");
  }
  if (!is_any || without < 0) return std::nullopt;
  return violation_of(Check::kCompleteness, schedule, without, {.kind = ActionKind::kReduceNorm},
                      "the row lacks it, although other ranks reduce the gradients' norm; either all ranks enter the "
                      "reduction or none, including ranks without a stage");
}

bool is_lowered(const Schedule& schedule) {
  return std::any_of(schedule.rows.begin(), schedule.rows.end(), [](const auto& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& action) { return !is_compute(action.kind); });
  });
}

Found check_reduce_tied(const Schedule& schedule) {
  const int groups = static_cast<int>(schedule.tied.size());
  const bool is_needed = groups > 0 && !schedule.forward_only && is_lowered(schedule);
  std::vector<char> seen(schedule.tied.size());
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    std::fill(seen.begin(), seen.end(), 0);
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const Action& action = row[at(index)];
      if (action.kind != kReduceTied) continue;
      const int group = action.other_stage;
      const bool is_group = group >= 0 && group < groups;
      if (!is_group || std::find(schedule.tied[at(group)].begin(), schedule.tied[at(group)].end(), action.stage) ==
                           schedule.tied[at(group)].end()) {
        return violation_at(Check::kCompleteness, schedule, rank, index,
                            "stage " + std::to_string(action.stage) + " is not a member of group " +
                                std::to_string(group) + "; the schedule has " + std::to_string(groups) +
                                " tied groups");
      }
      if (seen[at(group)] != 0) {
        return violation_at(Check::kCompleteness, schedule, rank, index,
                            "a duplicate: a rank enters the reduction of a tied group once");
      }
      seen[at(group)] = 1;
    }
    for (int group = 0; is_needed && group < groups; ++group) {
      for (const int stage : schedule.tied[at(group)]) {
        if (schedule.rank_of[at(stage)] != rank || seen[at(group)] != 0) continue;
        return violation_of(Check::kCompleteness, schedule, rank,
                            {.kind = kReduceTied, .stage = stage, .other_stage = group},
                            "the row lacks it; in a lowered schedule every rank that holds a stage of a tied group "
                            "enters its reduction");
      }
    }
  }
  return std::nullopt;
}

}  // namespace

Found check_completeness(const Schedule& schedule) {
  const auto microbatches = at(schedule.microbatches);
  std::vector<std::uint8_t> seen(schedule.rank_of.size() * microbatches, 0);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const char* wrong = nullptr;
      for_each_part(row[at(index)], [&](const Action& part) {
        if (wrong != nullptr || part.kind == ActionKind::kReduceNorm) return;
        if (!is_in_range(schedule, part)) {
          wrong = "out of range";
        } else if (is_compute(part.kind)) {
          if (schedule.forward_only && part.kind != ActionKind::kForward) {
            wrong = "a backward in a forward-only schedule";
            return;
          }
          auto& cell = seen[at(part.stage) * microbatches + at(part.microbatch)];
          if ((cell & bit(part.kind)) != 0) {
            wrong = "a duplicate";
          } else if (part.kind == ActionKind::kBackward && (cell & (kI | kW)) != 0) {
            wrong = "a whole backward in addition to a split one";
          } else if ((part.kind == ActionKind::kBackwardInput || part.kind == ActionKind::kBackwardWeight) &&
                     (cell & kB) != 0) {
            wrong = "a split backward in addition to a whole one";
          }
          cell = static_cast<std::uint8_t>(cell | bit(part.kind));
        }
      });
      if (wrong != nullptr) {
        return violation_at(Check::kCompleteness, schedule, rank, index,
                            std::string(wrong) + ": there are " + std::to_string(schedule.stages()) +
                                " virtual stages and " + std::to_string(schedule.microbatches) +
                                " microbatches, each with one F and one B, or one I and one W");
      }
    }
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (int i = 0; i < schedule.microbatches; ++i) {
      const auto missing = missing_from(seen[at(stage) * microbatches + at(i)], schedule.forward_only);
      if (!missing) continue;
      return violation_of(Check::kCompleteness, schedule, schedule.rank_of[at(stage)],
                          {.kind = *missing, .stage = stage, .microbatch = i}, "no row contains it");
    }
  }
  if (Found found = check_reduce_grad(schedule)) return found;
  if (Found found = check_reduce_norm(schedule)) return found;
  return check_reduce_tied(schedule);
}

}  // namespace smdp::pipeline
