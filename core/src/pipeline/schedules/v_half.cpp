// V-Half (Qi et al., arXiv 2405.15362): two virtual stages per rank in a V, with half of 1F1B's activations plus those
// of two virtual stages.
#include <algorithm>

#include "pipeline/schedules/schedules.h"
#include "pipeline/schedules/v_pattern.h"

namespace smdp::pipeline {

Schedule v_half(const GenerateOptions& options) {
  const Costs costs = costs_or_unit(options);
  const double largest = *std::max_element(costs.activation_bytes.begin(), costs.activation_bytes.end());
  // Two slots per hop one way and one the other: on every rank the lifetimes of both virtual stages add up to 6 (p -
  // 1).
  return best_of_blocks(blank("v_half", Placement::kV, options), {2, 1, 2, 1}, costs, (options.stages + 2) * largest);
}

}  // namespace smdp::pipeline
