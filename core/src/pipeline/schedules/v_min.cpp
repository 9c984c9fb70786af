// V-Min (Qi et al., arXiv 2405.15362): two virtual stages per rank in a V, a third of 1F1B's activations and a little
// more, by list scheduling under that cap.
#include <algorithm>

#include "pipeline/schedules/greedy.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule v_min(const GenerateOptions& options) {
  require_virtual_stages("v_min", options, 2, "zb_v");
  const Costs costs = costs_or_unit(options);
  const double largest = *std::max_element(costs.activation_bytes.begin(), costs.activation_bytes.end());
  const int kept = 2 * ((options.stages + 2) / 3);
  return best_greedy(blank("v_min", Placement::kV, options), costs, std::max(2, kept) * largest);
}

}  // namespace smdp::pipeline
