// ZB-1p (Qi et al., arXiv 2401.10241): split backward, with the activations of 1F1B. Handcrafted for equal times
// (ZB-H1, the interleaved order with one virtual stage), or the result of list scheduling if that is better on the
// given times.
#include <algorithm>
#include <utility>

#include "pipeline/schedules/best_greedy.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule zb_1p(const GenerateOptions& options) {
  const Costs costs = costs_or_unit(options);
  const double largest = *std::max_element(costs.activation_bytes.begin(), costs.activation_bytes.end());
  Schedule best = interleaved_zero_bubble(options);
  best.name = "zb_1p";
  Schedule found = best_greedy(blank("zb_1p", Placement::kLoop, options), costs, options.stages * largest);
  return is_better(score_of(found, costs), score_of(best, costs)) ? found : best;
}

}  // namespace smdp::pipeline
