// ZB-2p (Qi et al., arXiv 2401.10241): split backward, with the activations of at most 2p - 1 microbatches. They keep a
// rank busy from its first forward to its last weight gradient if hops take no time; the paper's 2p cover one hop more.
// The schedule is useful if a rank's optimizer step need not wait for other ranks, so the span counts and not the
// makespan.
//
// It is the best of list scheduling and of the handcrafted order for equal times (ZB-H2: 2(p - r) - 1 forwards, then
// alternately an input gradient and a forward), in which weight gradients fill the free time.
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
  const Costs costs = costs_or_unit(options);
  const double largest = *std::max_element(costs.activation_bytes.begin(), costs.activation_bytes.end());
  const double cap = (2 * options.stages - 1) * largest;
  const Schedule empty = blank("zb_2p", Placement::kLoop, options);
  Schedule best = best_greedy(empty, costs, cap, true);
  Score best_score = score_of(best, costs);
  GreedyRules rules;
  rules.memory_cap = cap;
  for (int rank = 0; rank < options.stages; ++rank) {
    rules.order.push_back(handcrafted(rank, options.stages, options.microbatches));
  }
  for (const int lookahead : {0, 1, 2}) {
    rules.lookahead = lookahead;
    Schedule next = run_greedy(empty, costs, rules);
    const Score score = score_of(next, costs);
    if (score.peak > cap * (1 + 1e-9) || !is_better(score, best_score, true)) continue;
    best = std::move(next);
    best_score = score;
  }
  return best;
}

}  // namespace smdp::pipeline
