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

// What is missing from the set of kinds that a stage has run on a microbatch.
std::optional<ActionKind> missing_from(std::uint8_t seen, bool is_forward_only) {
  if ((seen & kF) == 0) return ActionKind::kForward;
  if (is_forward_only || (seen & kB) != 0) return std::nullopt;
  if ((seen & (kI | kW)) == 0) return ActionKind::kBackward;
  if ((seen & kI) == 0) return ActionKind::kBackwardInput;
  if ((seen & kW) == 0) return ActionKind::kBackwardWeight;
  return std::nullopt;
}

}  // namespace

Found check_completeness(const Schedule& schedule) {
  const auto microbatches = static_cast<std::size_t>(schedule.microbatches);
  std::vector<std::uint8_t> seen(schedule.rank_of.size() * microbatches, 0);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const char* wrong = nullptr;
      for_each_part(row[static_cast<std::size_t>(index)], [&](const Action& part) {
        if (wrong != nullptr) return;
        if (!is_in_range(schedule, part)) {
          wrong = "out of range";
        } else if (is_compute(part.kind)) {
          if (schedule.forward_only && part.kind != ActionKind::kForward) {
            wrong = "a backward in a forward-only schedule";
            return;
          }
          auto& cell =
              seen[static_cast<std::size_t>(part.stage) * microbatches + static_cast<std::size_t>(part.microbatch)];
          if ((cell & bit(part.kind)) != 0) {
            wrong = "a duplicate";
          } else if (part.kind == ActionKind::kBackward && (cell & (kI | kW)) != 0) {
            wrong = "a whole backward beside a split one";
          } else if ((part.kind == ActionKind::kBackwardInput || part.kind == ActionKind::kBackwardWeight) &&
                     (cell & kB) != 0) {
            wrong = "a split backward beside a whole one";
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
      const auto missing = missing_from(
          seen[static_cast<std::size_t>(stage) * microbatches + static_cast<std::size_t>(i)], schedule.forward_only);
      if (!missing) continue;
      return violation_of(Check::kCompleteness, schedule, schedule.rank_of[static_cast<std::size_t>(stage)],
                          {.kind = *missing, .stage = stage, .microbatch = i}, "no row has it");
    }
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
