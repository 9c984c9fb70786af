#include <string>
#include <vector>

#include "pipeline/checks/checks.h"

namespace smdp::pipeline {
namespace {

enum class Parameters : char { kAlwaysWhole, kSharded, kWhole };

}  // namespace

Found check_placement(const Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    // Stages that the row unshards begin sharded; others are never sharded.
    std::vector<Parameters> parameters(schedule.rank_of.size(), Parameters::kAlwaysWhole);
    for (const Action& action : row) {
      if ((action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReshard) &&
          is_in_range(schedule, action)) {
        parameters[static_cast<std::size_t>(action.stage)] = Parameters::kSharded;
      }
    }
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      std::string wrong;
      for_each_part(row[static_cast<std::size_t>(index)], [&](const Action& part) {
        if (!wrong.empty() || !is_in_range(schedule, part)) return;
        const int home = schedule.rank_of[static_cast<std::size_t>(part.stage)];
        if (home != rank) {
          wrong = "stage " + std::to_string(part.stage) + " is on rank " + std::to_string(home);
          return;
        }
        Parameters& state = parameters[static_cast<std::size_t>(part.stage)];
        if (part.kind == ActionKind::kUnshard) {
          if (state == Parameters::kWhole) wrong = "its parameters are already unsharded";
          state = Parameters::kWhole;
        } else if (part.kind == ActionKind::kReshard) {
          if (state == Parameters::kSharded) wrong = "its parameters are not unsharded";
          state = Parameters::kSharded;
        } else if (is_compute(part.kind) && state == Parameters::kSharded) {
          wrong = "its parameters are used before UNSHARD or after RESHARD";
        }
      });
      if (!wrong.empty()) return violation_at(Check::kPlacement, schedule, rank, index, wrong);
    }
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
