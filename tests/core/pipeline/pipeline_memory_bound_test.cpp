// A steady state without bubble holds the ceiling of lifespan / X activations, X a microbatch's seconds on the rank:
// one comes and one goes every X, and each stays from the start of its F to the end of its B. A schedule that keeps
// less is a bug.
//
// Where it applies: backwards in one piece, and a rank that is busy all the time from its first backward to its last
// forward. gpipe and looped_bfs have no such time, since all forwards come first; they keep all m.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/schedules.h"

namespace smdp::pipeline {
namespace {

constexpr double kF = 1.25;
constexpr double kI = 1.5;
constexpr double kW = 0.875;
constexpr double kX = kF + kI + kW;

bool is_backward(const Action& action) { return action.kind == ActionKind::kBackward; }

// Whether a rank has a steady state, from its first backward to its last forward, and no gap in it.
bool is_busy_throughout(const Schedule& schedule, const Simulation& result, std::size_t rank) {
  const auto& row = schedule.rows[rank];
  const auto& times = result.timeline[rank];
  std::size_t first = 0;
  while (!is_backward(row[first])) ++first;
  std::size_t last = row.size() - 1;
  while (is_backward(row[last])) --last;
  for (std::size_t i = first; i < last; ++i) {
    if (times[i + 1].start > times[i].end + 1e-9) return false;
  }
  return first < last;
}

// Activations of whole stages; nothing where the bound does not apply.
std::optional<double> least_kept(const Schedule& schedule, const Costs& costs, const Simulation& result, int rank) {
  if (!is_busy_throughout(schedule, result, static_cast<std::size_t>(rank))) return std::nullopt;
  double alive = 0;  // seconds of a microbatch's activations, of all virtual stages of the rank
  double seconds = 0;
  double after = 0;  // from the end of F to the start of B
  int count = 0;
  for (int stage = schedule.stages() - 1; stage >= 0; --stage) {
    const std::size_t i = at(stage);
    const double own = costs.forward[i] + costs.backward_input[i] + costs.backward_weight[i];
    if (schedule.rank_of[i] == rank) {
      alive += own + after;
      seconds += own;
      ++count;
    }
    after += own + 2 * costs.hop;
  }
  return std::ceil(alive / seconds - 1e-9) / count;
}

TEST(MemoryBound, NoScheduleKeepsLessInItsSteadyState) {
  std::map<std::string, int> compared;
  for (const ScheduleInfo& info : schedule_names()) {
    const std::string name(info.name);
    if (info.is_split || name == "forward_only") continue;
    for (const int v : virtual_stages_of(name)) {
      for (int p = 2; p <= 8; ++p) {
        for (const int m : {16 * p, 16 * p + p / 2}) {
          const Schedule schedule = make(name, p, m, v);
          const Costs costs = of_full_stage(schedule, kF, kI, kW);
          const Simulation result = simulate(schedule, costs);
          for (int rank = 0; rank < p; ++rank) {
            const std::optional<double> least = least_kept(schedule, costs, result, rank);
            if (!least) continue;
            ++compared[name];
            SCOPED_TRACE(name + " p " + std::to_string(p) + " m " + std::to_string(m) + " v " + std::to_string(v));
            EXPECT_GE(result.peak_activations[at(rank)], *least - 1e-9) << "rank " << rank;
            if (v > 1) continue;
            EXPECT_EQ(*least, p - rank);
            if (name == "1f1b") {
              EXPECT_EQ(result.peak_activations[at(rank)], *least) << "1F1B keeps no more than that";
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(compared["1f1b"], 2 * (2 + 3 + 4 + 5 + 6 + 7 + 8)) << "every rank of every one";
  EXPECT_GT(compared["interleaved_1f1b"], 200);
  EXPECT_GT(compared["smp_interleaved"], 30);
  EXPECT_EQ(compared.size(), 3U);
}

// Activations wait for hops, too: 1F1B waits with them, and who does not keeps one more.
TEST(MemoryBound, HopsLengthenTheLifespan) {
  for (const int p : {2, 4, 8}) {
    SCOPED_TRACE("p " + std::to_string(p));
    GenerateOptions options;
    options.stages = p;
    options.microbatches = 64 * p;
    options.active_microbatches = 3 * p;
    options.costs = uniform_costs(p, kF, kI, kW);
    options.costs->hop = kX / 64;
    const Schedule waiting = generate("1f1b", options);
    EXPECT_FALSE(least_kept(waiting, *options.costs, simulate(waiting, *options.costs), 0));
    const Schedule busy = generate("smp_interleaved", options);
    const Simulation result = simulate(busy, *options.costs);
    const std::optional<double> least = least_kept(busy, *options.costs, result, 0);
    ASSERT_TRUE(least);
    EXPECT_EQ(*least, p + 1);
    EXPECT_GE(result.peak_activations[0], *least);
  }
}

}  // namespace
}  // namespace smdp::pipeline
