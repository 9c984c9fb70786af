// Bytes that a rank keeps while it runs its row. They depend on the row's order alone, not on the clock.
#pragma once

#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

struct Footprint {
  double peak = 0;
  int peak_index = -1;  // of the action at the peak; -1: nothing is kept
  int most_active = 0;  // microbatches of which the rank keeps anything
  int most_active_index = -1;
};

// In a forward-only schedule an activation lives as long as its F.
Footprint footprint(const Schedule& schedule, int rank, const Costs& costs);

}  // namespace smdp::pipeline
