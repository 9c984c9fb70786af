// The bytes that a rank keeps while it runs its row. They depend only on the row's order, not on time.
#pragma once

#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

struct Footprint {
  double peak = 0;
  int peak_index = -1;  // index of the action at the peak; -1: nothing is kept
  int most_active = 0;  // maximum number of microbatches of which the rank keeps anything
  int most_active_index = -1;
};

// In a forward-only schedule an activation lives as long as its F.
Footprint footprint(const Schedule& schedule, int rank, const Costs& costs);

}  // namespace smdp::pipeline
