#include <vector>

#include "pipeline/lowering/require.h"
#include "smdp/pipeline/lowering.h"

namespace smdp::pipeline {

// Added on ranks without a stage as well: they are members, and the others would wait for them.
Schedule add_reduce_norm(const Schedule& schedule) {
  check_shape(schedule);
  require_without(schedule, "add_reduce_norm", "REDUCE_NORM",
                  [](ActionKind kind) { return kind == ActionKind::kReduceNorm; });
  Schedule result = schedule;
  if (schedule.forward_only) return result;
  for (auto& row : result.rows) row.push_back({.kind = ActionKind::kReduceNorm});
  return result;
}

}  // namespace smdp::pipeline
