// The partitioner against every cut there is, and what it says when there is none.
#include "smdp/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "smdp/error.h"
#include "smdp/memory.h"

namespace smdp::partition {
namespace {

using Random = std::mt19937_64;
using Ends = std::vector<std::size_t>;

int pick(Random& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
}

Problem random_problem(Random& random, int most_units, int most_ranks) {
  Problem problem;
  problem.ranks = pick(random, 1, most_ranks);
  const int count = pick(random, problem.ranks, most_units);
  problem.microbatches = pick(random, 1, 12);
  for (int i = 0; i < count; ++i) {
    Unit unit;
    unit.name = "block." + std::to_string(i);
    unit.forward = pick(random, 0, 6);
    unit.backward_input = pick(random, 0, 6);
    unit.backward_weight = pick(random, 0, 8);
    unit.parameter_bytes = 10 + pick(random, 0, 60);
    unit.activation_bytes = pick(random, 0, 40);
    unit.cut_bytes = pick(random, 0, 9);
    problem.units.push_back(unit);
  }
  problem.units.back().cut_bytes = 0;
  problem.latency = pick(random, 0, 2);
  problem.bandwidth = pick(random, 0, 3);
  problem.schedule = random() % 2 == 0 ? "1f1b" : "gpipe";
  if (pick(random, 0, 1) == 0) problem.memory_cap = pick(random, 100, 3000);
  if (pick(random, 0, 3) == 0) problem.memory_weight = pick(random, 0, 10) / 10.0;
  for (int groups = pick(random, 0, 2); groups > 0 && count > 1; --groups) {
    std::set<std::size_t> members;
    for (int i = pick(random, 2, 3); i > 0; --i) members.insert(static_cast<std::size_t>(pick(random, 0, count - 1)));
    if (members.size() > 1) problem.tied.push_back({5, {members.begin(), members.end()}});
  }
  problem.is_tied_together = pick(random, 0, 3) == 0;
  if (pick(random, 0, 4) == 0) {
    const auto unit = static_cast<std::size_t>(pick(random, 0, count - 1));
    problem.units[unit].stage = pick(random, 0, problem.ranks - 1);
  }
  return problem;
}

// Everything about one cut, straight from the definitions in partition.h.
struct Direct {
  bool is_allowed = true;
  double memory = 0;
  double bottleneck = 0;
  double objective = 0;
};

Direct directly(const Problem& problem, const Ends& ends) {
  Direct direct;
  std::vector<std::size_t> stage_of;
  for (std::size_t k = 0; k < ends.size(); ++k) stage_of.resize(ends[k], k);
  double all_seconds = 0;
  double all_bytes = 0;
  std::vector<double> seconds(ends.size(), 0);
  std::vector<double> parameters(ends.size(), 0);
  std::vector<double> activations(ends.size(), 0);
  for (std::size_t i = 0; i < problem.units.size(); ++i) {
    const Unit& unit = problem.units[i];
    const double own = unit.forward + unit.backward_input + unit.backward_weight;
    all_seconds += own;
    all_bytes += unit.parameter_bytes + unit.activation_bytes;
    seconds[stage_of[i]] += own;
    parameters[stage_of[i]] += unit.parameter_bytes;
    activations[stage_of[i]] += unit.activation_bytes;
    if (unit.stage >= 0 && static_cast<std::size_t>(unit.stage) != stage_of[i]) direct.is_allowed = false;
    if (i + 1 < problem.units.size() && stage_of[i + 1] != stage_of[i]) {
      direct.objective += 2 * (problem.latency + (problem.bandwidth > 0 ? unit.cut_bytes / problem.bandwidth : 0));
    }
  }
  for (const Tied& group : problem.tied) {
    std::set<std::size_t> users;
    for (const std::size_t unit : group.units) {
      if (!users.insert(stage_of[unit]).second) parameters[stage_of[unit]] -= group.bytes;
      all_bytes -= unit == group.units.front() ? 0 : group.bytes;
    }
    if (problem.is_tied_together && users.size() > 1) direct.is_allowed = false;
    direct.objective += static_cast<double>(users.size() - 1) *
                        (problem.latency + (problem.bandwidth > 0 ? group.bytes / problem.bandwidth : 0));
  }
  for (std::size_t k = 0; k < ends.size(); ++k) {
    const double held = memory::in_flight(problem.schedule, problem.ranks, static_cast<std::int64_t>(k),
                                          problem.microbatches, 1, problem.active_microbatches);
    direct.memory = std::max(direct.memory, problem.state_factor * parameters[k] + held * activations[k]);
    double load = (1 - problem.memory_weight) * seconds[k];
    if (all_bytes > 0) {
      load += problem.memory_weight * all_seconds / all_bytes * (parameters[k] + activations[k]);
    }
    direct.bottleneck = std::max(direct.bottleneck, load);
    direct.objective += load;
  }
  direct.objective += (problem.microbatches - 1) * direct.bottleneck;
  return direct;
}

// Bit i of a mask is the cut behind unit i.
void for_all_cuts(std::size_t units, std::size_t stages, const std::function<void(const Ends&)>& visit) {
  for (unsigned mask = 0; mask < 1u << (units - 1); ++mask) {
    if (static_cast<std::size_t>(std::popcount(mask)) + 1 != stages) continue;
    Ends ends;
    for (std::size_t unit = 0; unit + 1 < units; ++unit) {
      if ((mask >> unit & 1) != 0) ends.push_back(unit + 1);
    }
    ends.push_back(units);
    visit(ends);
  }
}

struct Best {
  double objective = std::numeric_limits<double>::infinity();
  double bottleneck = std::numeric_limits<double>::infinity();
  double memory = std::numeric_limits<double>::infinity();  // the smallest of any allowed cut
};

Best brute_force(const Problem& problem) {
  Best best;
  for_all_cuts(problem.units.size(), static_cast<std::size_t>(problem.ranks), [&](const Ends& cut) {
    const Direct direct = directly(problem, cut);
    if (!direct.is_allowed) return;
    best.memory = std::min(best.memory, direct.memory);
    if (problem.memory_cap > 0 && direct.memory > problem.memory_cap) return;
    best.objective = std::min(best.objective, direct.objective);
    best.bottleneck = std::min(best.bottleneck, direct.bottleneck);
  });
  return best;
}

Ends ends_of(const Partition& partition) {
  Ends ends;
  for (const Stage& stage : partition.stages) ends.push_back(stage.units.back() + 1);
  return ends;
}

std::string refusal(const Problem& problem) {
  try {
    partition(problem);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Partition, EqualsBruteForce) {
  Random random(1);
  int feasible = 0;
  for (int instance = 0; instance < 10000; ++instance) {
    Problem problem = random_problem(random, 14, 4);
    const Best best = brute_force(problem);
    if (best.objective == std::numeric_limits<double>::infinity()) {
      ASSERT_NE(refusal(problem), "") << instance;
      continue;
    }
    ++feasible;
    const Partition fastest = partition(problem);
    problem.algorithm = "sum";
    const Partition exact = partition(problem);
    ASSERT_LE(fastest.step, exact.step) << instance;
    if (problem.memory_cap > 0) {
      ASSERT_LE(directly(problem, ends_of(fastest)).memory, problem.memory_cap) << instance;
    }
    const Direct found = directly(problem, ends_of(exact));
    ASSERT_TRUE(found.is_allowed) << instance;
    ASSERT_NEAR(found.objective, best.objective, 1e-9 * best.objective) << instance;
    if (problem.memory_cap > 0) {
      ASSERT_LE(found.memory, problem.memory_cap) << instance;
    }
    problem.algorithm = "bottleneck";
    const Direct balanced = directly(problem, ends_of(partition(problem)));
    ASSERT_NEAR(balanced.bottleneck, best.bottleneck, 1e-9 * best.bottleneck) << instance;
  }
  EXPECT_GT(feasible, 6000);
}

TEST(Partition, TheSmallestCapDoes) {
  Random random(2);
  int refused = 0;
  int named = 0;
  for (int instance = 0; instance < 1000; ++instance) {
    Problem problem = random_problem(random, 10, 4);
    const double smallest = brute_force(problem).memory;
    if (smallest == std::numeric_limits<double>::infinity()) {
      // Fewer ranks first, then more.
      std::string expected = "Move the pins";
      const auto try_ranks = [&](int ranks) {
        Problem other = problem;
        other.ranks = ranks;
        other.memory_cap = 0;
        if (expected != "Move the pins" || brute_force(other).memory == smallest) return;
        expected = "Use ranks = " + std::to_string(ranks) + ", move the pins";
        ++named;
      };
      const int most = static_cast<int>(problem.units.size());
      for (int ranks = problem.ranks - 1; ranks > 0; --ranks) try_ranks(ranks);
      for (int ranks = problem.ranks + 1; ranks <= most; ++ranks) try_ranks(ranks);
      EXPECT_NE(refusal(problem).find("tied units together. " + expected), std::string::npos)
          << refusal(problem) << expected;
      continue;
    }
    problem.memory_cap = smallest;
    EXPECT_EQ(refusal(problem), "") << instance;
    problem.memory_cap = smallest - 1;
    const std::string error = refusal(problem);
    ASSERT_NE(error.find("needs " + std::to_string(static_cast<long>(smallest)) + " bytes"), std::string::npos)
        << error;
    if (const auto at = error.find("or use "); at != std::string::npos) {
      const int ranks = problem.ranks;
      problem.ranks = std::stoi(error.substr(at + 7));
      EXPECT_LT(brute_force(problem).objective, std::numeric_limits<double>::infinity());
      for (problem.ranks -= 1; problem.ranks > ranks; --problem.ranks) {
        EXPECT_EQ(brute_force(problem).objective, std::numeric_limits<double>::infinity());
      }
      ++refused;
    }
  }
  EXPECT_GT(named, 10);
  EXPECT_GT(refused, 100);
}

TEST(Partition, TheSimulatorAgreesWithTheSum) {
  Random random(3);
  for (int instance = 0; instance < 300; ++instance) {
    Problem problem = random_problem(random, 12, 4);
    problem.latency = problem.bandwidth = problem.memory_cap = problem.memory_weight = 0;
    if (brute_force(problem).objective == std::numeric_limits<double>::infinity()) continue;
    problem.schedule = "1f1b";
    problem.algorithm = "sum";
    const Partition found = partition(problem);
    const Direct direct = directly(problem, ends_of(found));
    // Where stages differ 1F1B may wait less than the sum says, never more.
    EXPECT_LE(found.step, direct.objective * (1 + 1e-9)) << instance;
    EXPECT_GE(found.step, problem.microbatches * found.bottleneck * (1 - 1e-9));
    EXPECT_NEAR(*std::max_element(found.peak_bytes.begin(), found.peak_bytes.end()), direct.memory,
                1e-9 * direct.memory);
    for (Unit& unit : problem.units) unit.backward_input = unit.backward_weight = unit.forward;
    problem.schedule = "gpipe";
    const Partition simple = partition(problem);
    EXPECT_NEAR(simple.step, directly(problem, ends_of(simple)).objective, 1e-9 * simple.step);
  }
}

// A chain of equal layers between a light embedding and a heavy head, tied.
Problem language_model(int layers, int ranks, int virtual_stages, int microbatches) {
  Problem problem;
  problem.ranks = ranks;
  problem.virtual_stages = virtual_stages;
  problem.microbatches = microbatches;
  problem.units.push_back({"transformer.wte", 0.1, 0, 0.2, 400, 10, 8, -1});
  for (int i = 0; i < layers; ++i) {
    problem.units.push_back({"transformer.h." + std::to_string(i), 1, 1, 1, 100, 50, 8, -1});
  }
  problem.units.push_back({"lm_head", 1.5, 1.5, 1.5, 400, 30, 0, -1});
  problem.tied.push_back({400, {0, static_cast<std::size_t>(layers) + 1}});
  problem.latency = 0.01;
  problem.bandwidth = 1000;
  return problem;
}

TEST(Partition, SimulatedCutsAreTheBestOfAll) {
  Random random(4);
  for (const char* schedule : {"interleaved_1f1b", "zb_v", "interleaved_zero_bubble"}) {
    for (int instance = 0; instance < 12; ++instance) {
      Problem problem = language_model(6, 2, 2, 6);
      problem.schedule = schedule;
      for (Unit& unit : problem.units) unit.forward = unit.backward_input = unit.backward_weight = pick(random, 1, 9);
      const Partition found = partition(problem);
      // Every cut there is, by pinning each unit to its stage.
      double best = std::numeric_limits<double>::infinity();
      for_all_cuts(problem.units.size(), 4, [&](const Ends& cut) {
        Problem pinned = problem;
        for (std::size_t unit = 0, stage = 0; unit < pinned.units.size(); ++unit) {
          if (unit == cut[stage]) ++stage;
          pinned.units[unit].stage = static_cast<int>(stage);
        }
        best = std::min(best, partition(pinned).step);
      });
      EXPECT_NEAR(found.step, best, 1e-9 * best) << schedule;
    }
  }
}

double peak(const Partition& partition) {
  return *std::max_element(partition.peak_bytes.begin(), partition.peak_bytes.end());
}

// The sum tells no more than a bound where ratios of forward to backward differ, or hops are waited for.
TEST(Partition, NoCutIsFasterThanTheDefaultOne) {
  Random random(8);
  for (int instance = 0; instance < 200; ++instance) {
    Problem problem = language_model(pick(random, 3, 7), pick(random, 2, 4), 1, pick(random, 1, 8));
    problem.schedule = instance % 2 == 0 ? "1f1b" : "gpipe";
    problem.latency = pick(random, 0, 2);
    for (Unit& unit : problem.units) {
      unit.forward = pick(random, 1, 9);
      unit.backward_input = pick(random, 1, 9);
      unit.backward_weight = pick(random, 1, 9);
    }
    const Partition found = partition(problem);
    if (instance % 4 > 1) problem.memory_cap = peak(found) * 0.95;
    Partition best;
    try {
      best = partition(problem);
    } catch (const InvalidArgument&) {
      continue;  // nothing else fits
    }
    for_all_cuts(problem.units.size(), static_cast<std::size_t>(problem.ranks), [&](const Ends& cut) {
      Problem pinned = problem;
      for (std::size_t unit = 0, stage = 0; unit < pinned.units.size(); ++unit) {
        if (unit == cut[stage]) ++stage;
        pinned.units[unit].stage = static_cast<int>(stage);
      }
      try {
        EXPECT_LE(best.step, partition(pinned).step * (1 + 1e-9)) << instance;
      } catch (const InvalidArgument&) {  // above the cap
      }
    });
  }
}

TEST(Partition, LongChainsAreSimulatedInPart) {
  // Too many cuts to try them all: never worse than equal numbers of layers.
  for (const char* schedule : {"interleaved_1f1b", "interleaved_zero_bubble"}) {
    Problem problem = language_model(62, 8, 2, 32);
    problem.schedule = schedule;
    const Partition found = partition(problem);
    for (std::size_t unit = 0; unit < 64; ++unit) problem.units[unit].stage = static_cast<int>(unit / 4);
    EXPECT_LT(found.step, partition(problem).step);
  }
}

TEST(Partition, SimulatedCutsKeepTheCap) {
  // Light in time and heavy in bytes, so that balance of seconds is far from what fits.
  Random random(6);
  for (const char* schedule : {"zb_1p", "smp_interleaved", "interleaved_1f1b", "zb_v", "auto"}) {
    const bool is_split = schedule == std::string("interleaved_1f1b") || schedule == std::string("zb_v");
    Problem problem = language_model(38, is_split ? 4 : 8, is_split ? 2 : 1, 8);
    problem.tied.clear();
    for (Unit& unit : problem.units) {
      unit.parameter_bytes = pick(random, 1, 300);
      unit.activation_bytes = pick(random, 0, 20);
    }
    problem.schedule = schedule;
    const Partition free = partition(problem);
    problem.memory_cap = 1;
    const std::string error = refusal(problem);
    const std::string before = "simulated cut needs ";
    const auto at = error.find(before);
    ASSERT_NE(at, std::string::npos) << error;
    problem.memory_cap = std::stod(error.substr(at + before.size())) + 1;
    ASSERT_LT(problem.memory_cap, peak(free)) << schedule;
    const Partition bound = partition(problem);
    EXPECT_LE(peak(bound), problem.memory_cap) << schedule;
  }
}

TEST(Partition, SplitBackwardNeedsNoMoreThan1F1B) {
  // Without activations memory is the same whatever the schedule.
  Random random(7);
  Problem problem = language_model(38, 8, 1, 8);
  problem.tied.clear();
  for (Unit& unit : problem.units) {
    unit.parameter_bytes = pick(random, 1, 300);
    unit.activation_bytes = 0;
  }
  problem.memory_cap = 1;
  const std::string error = refusal(problem);
  problem.memory_cap = std::stod(error.substr(error.find("needs ") + 6));
  EXPECT_EQ(refusal(problem), "");
  problem.schedule = "zb_1p";
  EXPECT_EQ(refusal(problem), "");
}

TEST(Partition, AutoGetsTheCap) {
  Problem problem = language_model(6, 2, 1, 16);
  problem.tied.clear();
  problem.memory_cap = peak(partition(problem));
  problem.schedule = "auto";
  EXPECT_EQ(refusal(problem), "");
}

TEST(Partition, SearchesEndWhereSchedulesAreSlowToMake) {
  for (const char* schedule : {"zb_1p", "auto"}) {
    Problem problem = language_model(62, 16, 1, 32);
    problem.schedule = schedule;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(partition(problem).stages.size(), 16u);
    // A bound against hangs, not a benchmark.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << schedule;
  }
}

TEST(Partition, AHeavyHeadGetsAStageWithFewerLayers) {
  const Partition found = partition(language_model(11, 4, 1, 8));
  EXPECT_EQ(found.stages.front().units.size(), 4u);
  EXPECT_LT(found.stages.back().units.size(), 4u);
  EXPECT_NE(found.reason.find("is the slowest with"), std::string::npos) << found.reason;
  EXPECT_NE(found.reason.find("the step would take"), std::string::npos) << found.reason;
  EXPECT_EQ(found.reason, partition(language_model(11, 4, 1, 8)).reason);
}

TEST(Partition, TiedUnitsMayBeKeptTogether) {
  Problem problem = language_model(6, 2, 1, 4);
  problem.is_tied_together = true;
  EXPECT_NE(refusal(problem).find("tied units together"), std::string::npos);
  problem.tied = {{100, {0, 1}}};
  const Partition found = partition(problem);
  EXPECT_GT(found.stages.front().units.size(), 1u);
}

TEST(Partition, LongChainsAreFast) {
  Random random(5);
  Problem problem = language_model(198, 64, 1, 512);
  for (Unit& unit : problem.units) {
    unit.forward = pick(random, 1, 1000) * 1e-5;
    unit.cut_bytes = pick(random, 1, 100);
  }
  problem.units.back().cut_bytes = 0;
  problem.memory_cap = 1e9;
  const std::clock_t start = std::clock();
  EXPECT_EQ(partition(problem).stages.size(), 64u);
  const auto took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(took, 20) << "seconds of processor time; about 0.1 where nothing instruments the code";
}

TEST(Partition, SmpsAlgorithm) {
  // Two towers of unequal cost on four ranks: d'Hondt gives the heavy one three.
  Problem problem;
  problem.algorithm = "smp";
  problem.ranks = 4;
  for (int i = 0; i < 6; ++i) problem.units.push_back({"vision." + std::to_string(i), 1, 0, 0, 1, 0, 0, -1});
  for (int i = 0; i < 6; ++i) problem.units.push_back({"text." + std::to_string(i), 3, 0, 0, 1, 0, 0, -1});
  const Partition found = partition(problem);
  EXPECT_EQ(found.stages[0].units, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5}));
  for (std::size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(found.stages[rank].units.size(), 2u);
  EXPECT_NE(found.reason.find("as SMP does"), std::string::npos);
  // A segment without a device goes to the first of its parent's.
  problem.ranks = 2;
  problem.units = {{"a.x", 1, 0, 0, 0, 0, 0, -1}, {"b.x", 50, 0, 0, 0, 0, 0, -1}, {"b.y", 49, 0, 0, 0, 0, 0, -1}};
  const Partition small = partition(problem);
  EXPECT_EQ(small.stages[0].units, (std::vector<std::size_t>{0, 1}));
  // Units that share parameters are one node.
  problem.units.front().parameter_bytes = problem.units.back().parameter_bytes = 7;
  problem.tied = {{7, {0, 2}}};
  const Partition tied = partition(problem);
  // Groups that overlap are one node, in whatever order they come.
  problem.tied = {{7, {0, 2}}, {0, {0, 1}}};
  const Partition once = partition(problem);
  std::swap(problem.tied[0], problem.tied[1]);
  const Partition swapped = partition(problem);
  EXPECT_EQ(once.stages[0].units, swapped.stages[0].units);
  EXPECT_EQ(once.stages[0].units.size() % 3, 0u);
  const auto holds_both = [](const Stage& stage) {
    return std::count(stage.units.begin(), stage.units.end(), 0u) ==
           std::count(stage.units.begin(), stage.units.end(), 2u);
  };
  EXPECT_TRUE(holds_both(tied.stages[0]) && holds_both(tied.stages[1]));
}

TEST(Partition, StagesMayLieOnAnyRanks) {
  Problem problem;
  for (int i = 0; i < 4; ++i) {
    problem.units.push_back({"unit." + std::to_string(i), 1, 1, 1, 8, 2, i == 3 ? 0.0 : 4.0, i == 0 ? 0 : (i + 1) / 2});
  }
  problem.ranks = 2;
  problem.microbatches = 2;
  problem.schedule = "smp_interleaved";
  problem.rank_of = {0, 1, 0};  // units 0, 1 and 2, 3
  const Partition found = partition(problem);
  ASSERT_EQ(found.stages.size(), 3U);
  EXPECT_EQ(found.stages[1].units, (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ((std::vector<int>{found.stages[0].rank, found.stages[1].rank, found.stages[2].rank}), problem.rank_of);
  EXPECT_EQ(found.stages[2].parameter_bytes, 8);
  // Two microbatches, one after the other through all three stages at the worst.
  EXPECT_GE(found.step, 3 * 4);
  EXPECT_LE(found.step, 3 * 4 * 2);
  problem.units[3].stage = -1;
  EXPECT_THROW(partition(problem), InvalidArgument);
  problem.units[3].stage = 1;
  EXPECT_THROW(partition(problem), InvalidArgument);
}

TEST(Partition, WrongInput) {
  const Problem right = language_model(4, 2, 1, 4);
  const auto says = [&](auto change, const std::string& text) {
    Problem problem = right;
    change(problem);
    EXPECT_NE(refusal(problem).find(text), std::string::npos) << refusal(problem);
  };
  says([](Problem& p) { p.units.clear(); }, "units = 0 entries is not valid; allowed: 1 to 4096");
  says([](Problem& p) { p.ranks = 0; }, "ranks = 0 is not valid; allowed: an integer from 1");
  says([](Problem& p) { p.ranks = 7; }, "ranks x virtual_stages = 7 x 1 is not valid; allowed: at most 6");
  says([](Problem& p) { p.units[2].forward = -1; }, "units[2].forward = -1");
  says([](Problem& p) { p.units[1].cut_bytes = std::nan(""); }, "units[1].cut_bytes = nan");
  says([](Problem& p) { p.units[1].backward_weight = INFINITY; }, "units[1].backward_weight = inf");
  says([](Problem& p) { p.units[3].stage = 2; }, "units[3].stage = 2 is not valid; allowed: an integer from -1 to 1");
  says([](Problem& p) { p.units[1].stage = 1, p.units[2].stage = 0; }, "units[2].stage = 0 is not valid; allowed: 1");
  says([](Problem& p) { p.tied[0].units.resize(1); }, "tied[0].units = 1 entries");
  says([](Problem& p) { p.tied[0].units[1] = 99; }, "tied[0].units[1] = 99");
  says([](Problem& p) { p.tied[0].bytes = 401; }, "tied[0].bytes = 401");
  says([](Problem& p) { p.memory_weight = 1.5; }, "memory_weight = 1.5");
  const auto keep_together = [](Problem& p) { p.is_tied_together = true; };
  says(keep_together,
       "no cut into 2 stages that keeps every pinned unit on its stage and tied units together. Use ranks = 1, ");
  says([](Problem& p) { p.ranks = 2, p.units[3].stage = p.units[5].stage = 0; },
       "together. Use ranks = 1, move the pins");
  says([](Problem& p) { p.ranks = 2, p.units[0].stage = 1; }, "together. Move the pins");
  says([](Problem& p) { p.ranks = 3, p.units[4].stage = 2, p.units[5].stage = 2, p.units[0].stage = 1; }, "er. Move");
  says([](Problem& p) { p.algorithm = "metis"; },
       "algorithm = 'metis' is not valid; allowed: pipeline, sum, bottleneck, smp");
  says([](Problem& p) { p.schedule = "nonsense"; }, "there is no schedule 'nonsense'");
  says([](Problem& p) { p.schedule = "nonsense", p.algorithm = "smp"; }, "there is no schedule 'nonsense'");
  says([](Problem& p) { p.algorithm = "smp", p.units[0].stage = 0; }, "units[0].stage = 0 is not valid; allowed: none");
  says([](Problem& p) { p.algorithm = "smp", p.virtual_stages = 2; }, "virtual_stages = 2 is not valid; allowed: 1,");
  says([](Problem& p) { p.algorithm = "sum", p.virtual_stages = 2, p.memory_cap = 9; }, "only pipeline simulates them");
  says([](Problem& p) { p.schedule = "zb_v"; }, "virtual_stages = 1 is not valid; allowed: 2, with the schedule zb_v");
  says([](Problem& p) { p.units[0].name.assign(5000, '.'); }, "at most 256 dots");
  says([](Problem& p) { p.microbatches = 1 << 29; }, "microbatches = 536870912 is not valid");
}

}  // namespace
}  // namespace smdp::partition
