// auto: the shortest of all schedules on the given times that stays within the memory cap. Candidates are all named
// schedules that support these numbers, and list scheduling under the cap itself, in a loop and in a V.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/argument.h"
#include "pipeline/schedules/best_greedy.h"
#include "pipeline/schedules/schedules.h"
#include "smdp/error.h"

namespace smdp::pipeline {
namespace {

// Whenever a rank is free, list scheduling looks at all of its stages.
constexpr int kMostVirtualStages = 64;

std::vector<Schedule> candidates(const GenerateOptions& options, const Costs& costs) {
  const int v = options.virtual_stages;
  // Among equal schedules the first one is taken, so schedules made for this number come before those that support any.
  std::vector<ScheduleInfo> named = schedule_names();
  std::stable_partition(named.begin(), named.end(), [&](const ScheduleInfo& info) { return info.virtual_stages == v; });
  std::vector<Schedule> all;
  for (const ScheduleInfo& info : named) {
    if (info.name == "auto" || info.name == "forward_only") continue;
    try {
      all.push_back(generate(info.name, options));
    } catch (const InvalidArgument&) {
      // The schedule does not support these numbers.
    }
  }
  for (const Placement placement : {Placement::kLoop, Placement::kV}) {
    if (placement == Placement::kV && (v == 1 || !options.rank_of.empty())) continue;
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
  check_count("virtual_stages", options.virtual_stages, 1, kMostVirtualStages, " for auto");
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
    refuse("memory_cap", shown(*options.memory_cap),
           shown(least) +
               " bytes per rank or more, the minimum of all schedules; use smaller microbatches, activation " +
               "checkpointing, or more stages");
  }
  return std::move(*best);
}

}  // namespace smdp::pipeline
