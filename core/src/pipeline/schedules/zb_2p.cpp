// ZB-2p (Qi et al., arXiv 2401.10241): split backward, at most 2p microbatches' activations; 2p - 1 are enough for a
// rank to be busy from its first forward to its last weight gradient if hops take no time. It pays where the
// optimizer's step of one rank need not wait for another's; hence the span counts, not the makespan.
//
// The best of list scheduling and of the handcrafted order for equal times (ZB-H2: 2(p - r) - 1 forwards, then an input
// gradient and a forward in turn), in which weight gradients fill what the clock leaves free.
#include <algorithm>
#include <utility>
#include <vector>

#include "pipeline/schedules/best_greedy.h"
#include "pipeline/schedules/greedy.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {
namespace {

std::vector<Action> handcrafted(int rank, int ranks, int microbatches) {
  std::vector<Action> order;
  const int warm_up = std::min(microbatches, 2 * (ranks - rank) - 1);
  for (int i = 0; i < warm_up; ++i) order.push_back(compute(ActionKind::kForward, rank, i));
  for (int i = 0; i < microbatches; ++i) {
    order.push_back(compute(ActionKind::kBackwardInput, rank, i));
    if (warm_up + i < microbatches) order.push_back(compute(ActionKind::kForward, rank, warm_up + i));
  }
  return order;
}

}  // namespace

Schedule zb_2p(const GenerateOptions& options) {
  require_virtual_stages("zb_2p", options, 1, "zb_v");
  const Costs costs = costs_or_unit(options);
  const double largest = *std::max_element(costs.activation_bytes.begin(), costs.activation_bytes.end());
  const Schedule empty = blank("zb_2p", Placement::kLoop, options);
  Schedule best = best_greedy(empty, costs, (2 * options.stages - 1) * largest, true);
  Score best_score = score_of(best, costs);
  const auto compete = [&](Schedule schedule) {
    const Score score = score_of(schedule, costs);
    if (score.peak > 2 * options.stages * largest * (1 + 1e-9) || !is_better(score, best_score, true)) return;
    best = std::move(schedule);
    best_score = score;
  };
  GreedyRules rules;
  rules.memory_cap = 2 * options.stages * largest;
  for (int rank = 0; rank < options.stages; ++rank) {
    rules.order.push_back(handcrafted(rank, options.stages, options.microbatches));
  }
  for (const int lookahead : {0, 1, 2}) {
    rules.lookahead = lookahead;
    compete(run_greedy(empty, costs, rules));
  }
  compete(best_greedy(empty, costs, rules.memory_cap, true));
  return best;
}

}  // namespace smdp::pipeline
