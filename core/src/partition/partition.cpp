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
    if (best.ends.empty()) refuse_infeasible(problem, spans, best.smallest_peak);
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

}  // namespace

Partition partition(const Problem& problem) {
  check(problem);
  const auto stages = static_cast<std::size_t>(problem.ranks) * static_cast<std::size_t>(problem.virtual_stages);
  const Spans spans(problem, stages, in_flight(problem, problem.ranks));
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
