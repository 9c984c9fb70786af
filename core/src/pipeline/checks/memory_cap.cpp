#include <string>

#include "common/argument.h"
#include "pipeline/checks/checks.h"
#include "pipeline/footprint.h"

namespace smdp::pipeline {

Found check_memory_cap(const Schedule& schedule, const VerifyOptions& options) {
  if (!options.memory_cap && options.active_microbatches == 0) return std::nullopt;
  const Costs costs = options.costs ? *options.costs : uniform_costs(schedule.stages());
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const Footprint kept = footprint(schedule, rank, costs);
    // Sums of equal terms in a different order may differ in the last bit.
    if (options.memory_cap && kept.peak > *options.memory_cap * (1 + 1e-12)) {
      return violation_at(
          Check::kMemoryCap, schedule, rank, kept.peak_index,
          "the rank keeps " + shown(kept.peak) + " bytes here, its peak; the cap is " + shown(*options.memory_cap));
    }
    if (options.active_microbatches > 0 && kept.most_active > options.active_microbatches) {
      return violation_at(Check::kMemoryCap, schedule, rank, kept.most_active_index,
                          "the rank has " + std::to_string(kept.most_active) +
                              " microbatches in flight here; active_microbatches is " +
                              std::to_string(options.active_microbatches));
    }
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
