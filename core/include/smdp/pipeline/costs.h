// Costs of the actions of a schedule, for the simulator and for generators that depend on time.
#pragma once

#include <vector>

#include "smdp/export.h"

namespace smdp::pipeline {

// Vectors have one entry per virtual stage. Units are seconds and bytes, but any consistent unit works.
struct Costs {
  std::vector<double> forward;
  std::vector<double> backward_input;
  std::vector<double> backward_weight;   // B takes the sum of both
  std::vector<double> activation_bytes;  // of a microbatch, from the start of F to the end of B or W
  std::vector<double> stash_bytes;       // part of activation_bytes that is left between I and W; empty: all
  std::vector<double> receive_bytes;     // of a receive buffer, from RECV until its consumer ends; empty: 0
  double hop = 0;                        // from the end of a computation to its consumer's start on another rank
  double unshard = 0;                    // these six block the rank; the default assumes that streams hide them
  double reduce_grad = 0;
  double reduce_tied = 0;
  double reduce_norm = 0;
  double offload = 0;
  double reload = 0;
};

// Returns costs that are equal for all `stages` virtual stages.
SMDP_API Costs uniform_costs(int stages, double forward = 1, double backward_input = 1, double backward_weight = 1,
                             double activation_bytes = 1);

// Throws InvalidArgument, which names field and value, unless each stage has a value from 0 to 1e100.
SMDP_API void check_costs(const Costs& costs, int stages);

}  // namespace smdp::pipeline
