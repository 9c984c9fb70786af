// V-Min (Qi et al., arXiv 2405.15362): two virtual stages per rank in a V, with slightly more than a third of 1F1B's
// activations.
#include <algorithm>

#include "pipeline/schedules/schedules.h"
#include "pipeline/schedules/v_pattern.h"

namespace smdp::pipeline {

Schedule v_min(const GenerateOptions& options) {
  const Costs costs = costs_or_unit(options);
  const double largest = *std::max_element(costs.activation_bytes.begin(), costs.activation_bytes.end());
  // One slot per hop: the lifetimes of both virtual stages add up to about 4p slots of 6. Activations come and go in
  // pairs.
  const int kept = 2 * ((2 * options.stages + 8) / 6);
  return best_of_blocks(blank("v_min", Placement::kV, options), {1, 1, 1, 1}, costs, kept * largest);
}

}  // namespace smdp::pipeline
