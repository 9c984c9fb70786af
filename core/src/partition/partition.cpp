#include "smdp/partition.h"

#include "partition/check.h"
#include "partition/explain.h"
#include "partition/price.h"
#include "partition/search.h"
#include "partition/simulated.h"
#include "partition/smp.h"

namespace smdp::partition {
namespace {

Ends chosen_ends(const Problem& problem, const Spans& spans) {
  const double weight = problem.microbatches - 1;
  const bool is_balanced = problem.algorithm == "bottleneck";
  if (problem.algorithm == "pipeline" && !is_sum_exact(problem)) {
    const Simulated best = best_simulated(problem, spans);
    if (!best.is_within_cap) refuse_infeasible(problem, spans, best.peak);
    return best.ends;
  }
  const std::vector<Cut> front = pareto_front(spans, weight);
  if (front.empty()) refuse_infeasible(problem, spans, 0);
  if (is_balanced) return front.back().ends;
  const Cut* best = &front.back();
  for (const Cut& cut : front) {
    if (cut.extra + weight * cut.bottleneck < best->extra + weight * best->bottleneck) best = &cut;
  }
  return problem.algorithm == "sum" ? best->ends : improved(problem, spans, best->ends);
}

// Returns the only partition, if the pins determine all stages.
Ends pinned_ends(const Problem& problem) {
  Ends ends;
  for (std::size_t i = 1; i < problem.units.size(); ++i) {
    if (problem.units[i].stage != problem.units[i - 1].stage) ends.push_back(i);
  }
  ends.push_back(problem.units.size());
  return ends;
}

// For all other schedules "pipeline" asks the simulator.
bool is_capped_by_form(const Problem& problem) { return problem.algorithm != "pipeline" || is_sum_exact(problem); }

}  // namespace

Partition partition(const Problem& problem) {
  check(problem);
  if (!problem.rank_of.empty()) {
    const Spans spans(problem, std::vector<double>(problem.rank_of.size(), 1), 0);
    const Ends ends = pinned_ends(problem);
    Partition result = priced(problem, spans, ends);
    result.reason = reason_of(problem, spans, ends, result);
    return result;
  }
  // Several stages share a rank's cap, which only a simulation can check.
  const double stage_cap = problem.virtual_stages == 1 && is_capped_by_form(problem) ? problem.memory_cap : 0;
  const Spans spans(problem, in_flight(problem, problem.ranks), stage_cap);
  if (problem.algorithm == "smp") {
    Partition result = priced(problem, spans, smp_assignment(problem));
    result.reason = reason_of(result);
    return result;
  }
  const Ends ends = chosen_ends(problem, spans);
  Partition result = priced(problem, spans, ends);
  result.reason = reason_of(problem, spans, ends, result);
  return result;
}

}  // namespace smdp::partition
