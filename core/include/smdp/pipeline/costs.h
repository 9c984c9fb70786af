// What the actions of a schedule take, for the simulator and for generators that look at the clock.
#pragma once

#include <vector>

#include "smdp/export.h"

namespace smdp::pipeline {

// Vectors have one entry per virtual stage. Seconds and bytes, or any other unit: nothing here depends on it.
struct Costs {
  std::vector<double> forward;
  std::vector<double> backward_input;
  std::vector<double> backward_weight;   // B takes both
  std::vector<double> activation_bytes;  // of a microbatch, from the start of F to the end of B or W
  std::vector<double> stash_bytes;       // what of them is left between I and W; empty: all
  std::vector<double> receive_bytes;     // of a receive buffer, from RECV to the end of what consumes it; empty: 0
  double hop = 0;                        // from the end of a computation to the start on another rank
  double unshard = 0;                    // these six hold the rank up; the default is that streams hide them
  double reduce_grad = 0;
  double reduce_tied = 0;
  double reduce_norm = 0;
  double offload = 0;
  double reload = 0;
};

// The same for every one of `stages` virtual stages.
SMDP_API Costs uniform_costs(int stages, double forward = 1, double backward_input = 1, double backward_weight = 1,
                             double activation_bytes = 1);

// Throws InvalidArgument, naming field and value, unless there is a value from 0 to 1e100 for each stage.
SMDP_API void check_costs(const Costs& costs, int stages);

}  // namespace smdp::pipeline
