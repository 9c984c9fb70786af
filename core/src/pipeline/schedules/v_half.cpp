// V-Half (Qi et al., arXiv 2405.15362): two virtual stages per rank in a V, half of 1F1B's activations and two virtual
// stages' worth more, by list scheduling under that cap.
#include <algorithm>

#include "pipeline/schedules/greedy.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule v_half(const GenerateOptions& options) {
  require_virtual_stages("v_half", options, 2, "zb_v");
  const Costs costs = costs_or_unit(options);
  const double largest = *std::max_element(costs.activation_bytes.begin(), costs.activation_bytes.end());
  return best_greedy(blank("v_half", Placement::kV, options), costs, (options.stages + 2) * largest);
}

}  // namespace smdp::pipeline
