// auto: the shortest of all schedules on the given times that keeps within the memory cap. The candidates are the named
// ones that have this number of virtual stages, and list scheduling under the cap itself, in a loop and in a V.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/schedules/best_greedy.h"
#include "pipeline/schedules/schedules.h"
#include "smdp/error.h"

namespace smdp::pipeline {
namespace {

std::vector<Schedule> candidates(const GenerateOptions& options, const Costs& costs) {
  std::vector<Schedule> all;
  const int v = options.virtual_stages;
  if (v == 1) {
    all = {one_f_one_b(options), gpipe(options), zb_1p(options), zb_2p(options)};
  } else {
    all = {interleaved_1f1b(options), interleaved_zero_bubble(options), looped_bfs(options)};
  }
  if (v == 2) {
    all.push_back(zb_v(options));
    all.push_back(v_half(options));
    all.push_back(v_min(options));
    if (options.microbatches >= 2 * options.stages) all.push_back(dualpipe_v(options));
  }
  for (const Placement placement : {Placement::kLoop, Placement::kV}) {
    if (placement == Placement::kV && v == 1) continue;
    const Schedule empty = blank("auto", placement, options);
    const double least = smallest_cap(empty, costs);
    all.push_back(best_greedy(empty, costs, least));
    if (!options.memory_cap) {
      all.push_back(best_greedy(empty, costs, 0));
    } else if (*options.memory_cap >= least) {
      all.push_back(best_greedy(empty, costs, *options.memory_cap));
    }
  }
  return all;
}

}  // namespace

Schedule automatic(const GenerateOptions& options) {
  const Costs costs = costs_or_unit(options);
  std::optional<Schedule> best;
  std::optional<Score> best_score;
  double least = std::numeric_limits<double>::infinity();
  for (Schedule& schedule : candidates(options, costs)) {
    const Score score = score_of(schedule, costs);
    least = std::min(least, score.peak);
    if (options.memory_cap && score.peak > *options.memory_cap * (1 + 1e-9)) continue;
    if (best && !is_better(score, *best_score)) continue;
    best = std::move(schedule);
    best_score = score;
  }
  if (!best) {
    throw InvalidArgument("[smdp] auto: no schedule keeps within memory_cap=" + std::to_string(*options.memory_cap) +
                          " bytes per rank; the smallest cap that would do is " + std::to_string(least) +
                          ". Use smaller microbatches, checkpoint activations, or more stages.");
  }
  return std::move(*best);
}

}  // namespace smdp::pipeline
