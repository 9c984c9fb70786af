#include "pipeline/schedules/best_greedy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "pipeline/schedules/greedy.h"
#include "smdp/pipeline/simulate.h"

namespace smdp::pipeline {
namespace {

std::vector<GreedyRules> rules_for(const Schedule& blank, double memory_cap) {
  GreedyRules rules;
  rules.memory_cap = memory_cap;
  std::vector<GreedyRules> all{rules};
  rules.forward_patience = 0.3;
  all.push_back(rules);
  if (is_long(blank)) return all;
  for (const double forward_patience : {0.0, 0.1, 0.3, 0.5}) {
    for (const bool is_backward_first : {true, false}) {
      for (const double patience : {0.0, 0.3, 0.7, 1.0}) {
        rules.forward_patience = forward_patience;
        rules.is_backward_first = is_backward_first;
        rules.patience = patience;
        all.push_back(rules);
      }
    }
  }
  return all;
}

bool is_complete(const Schedule& schedule) {
  std::size_t actions = 0;
  for (const auto& row : schedule.rows) actions += row.size();
  return actions == 3 * schedule.rank_of.size() * static_cast<std::size_t>(schedule.microbatches);
}

// If the makespan cannot be improved, the remaining gain in span and memory is not worth the search.
bool is_good_enough(const Score& score, const LowerBounds& bounds, bool by_span) {
  return score.makespan <= bounds.makespan * (1 + 1e-12) && (!by_span || score.span <= bounds.span * (1 + 1e-12));
}

}  // namespace

bool is_long(const Schedule& schedule) {
  constexpr std::size_t kMostCells = 30'000;
  return schedule.rank_of.size() * static_cast<std::size_t>(schedule.microbatches) > kMostCells;
}

Score score_of(const Schedule& schedule, const Costs& costs) {
  const Simulation result = simulate(schedule, costs);
  return {result.makespan, result.span,
          *std::max_element(result.peak_activations.begin(), result.peak_activations.end())};
}

bool is_better(const Score& a, const Score& b, bool by_span) {
  const auto differ = [](double x, double y) { return std::abs(x - y) > 1e-12 * std::max(x, y); };
  const auto first = [&](const Score& score) { return by_span ? score.span : score.makespan; };
  const auto second = [&](const Score& score) { return by_span ? score.makespan : score.span; };
  if (differ(first(a), first(b))) return first(a) < first(b);
  if (differ(second(a), second(b))) return second(a) < second(b);
  return differ(a.peak, b.peak) && a.peak < b.peak;
}

double smallest_cap(const Schedule& schedule, const Costs& costs) {
  std::vector<double> need(schedule.rows.size(), 0);
  for (std::size_t stage = 0; stage < schedule.rank_of.size(); ++stage) {
    need[static_cast<std::size_t>(schedule.rank_of[stage])] += costs.activation_bytes[stage];
  }
  return *std::max_element(need.begin(), need.end());
}

Schedule best_greedy(const Schedule& blank, const Costs& costs, double memory_cap, bool by_span) {
  Schedule best = blank;
  std::optional<Score> best_score;
  for (const GreedyRules& rules : rules_for(blank, memory_cap)) {
    Schedule next = run_greedy(blank, costs, rules);
    if (!is_complete(next)) continue;
    const Score score = score_of(next, costs);
    if (best_score && !is_better(score, *best_score, by_span)) continue;
    best = std::move(next);
    best_score = score;
    if (is_good_enough(score, lower_bounds(best, costs), by_span)) break;
  }
  return best;
}

}  // namespace smdp::pipeline
