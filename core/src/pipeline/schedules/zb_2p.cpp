// ZB-2p (Qi et al., arXiv 2401.10241): split backward, at most 2p microbatches' activations; 2p - 1 are enough for a
// rank to be busy from its first forward to its last weight gradient if hops take no time. It pays where the
// optimizer's step of one rank need not wait for another's; hence the span counts, not the makespan.
#include <algorithm>

#include "pipeline/schedules/best_greedy.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule zb_2p(const GenerateOptions& options) {
  require_virtual_stages("zb_2p", options, 1, "zb_v");
  const Costs costs = costs_or_unit(options);
  const double largest = *std::max_element(costs.activation_bytes.begin(), costs.activation_bytes.end());
  const Schedule empty = blank("zb_2p", Placement::kLoop, options);
  Schedule least = best_greedy(empty, costs, (2 * options.stages - 1) * largest, true);
  Schedule most = best_greedy(empty, costs, 2 * options.stages * largest, true);
  return is_better(score_of(most, costs), score_of(least, costs), true) ? most : least;
}

}  // namespace smdp::pipeline
