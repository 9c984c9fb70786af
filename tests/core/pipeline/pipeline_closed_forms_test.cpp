// Makespan, bubble and peak of every schedule against the closed forms, and against the bounds that none can beat.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "pipeline/schedules.h"
#include "smdp/error.h"

namespace smdp::pipeline {
namespace {

constexpr double kTolerance = 1e-9;

// Seconds of a full stage. Not equal and not round, so that no term hides behind another.
constexpr double kF = 1.25;
constexpr double kI = 1.5;
constexpr double kW = 0.875;
constexpr double kX = kF + kI + kW;

// Sanitizers look for other things than wrong times, and take ten times as long.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kMostStages = 6;
constexpr int kMostMicrobatches = 16;
#else
constexpr int kMostStages = 16;
constexpr int kMostMicrobatches = 64;
#endif

template <typename Body>
void for_all(int most_virtual, Body&& body) {
  for (int p = 2; p <= kMostStages; ++p) {
    for (int m = 1; m <= kMostMicrobatches; ++m) {
      for (int v = 1; v <= most_virtual; ++v) {
        SCOPED_TRACE("p " + std::to_string(p) + " m " + std::to_string(m) + " v " + std::to_string(v));
        body(p, m, v);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

void expect_makespan(const Simulation& result, int p, int m, double idle, double x = kX) {
  EXPECT_NEAR(result.makespan, m * x + idle, kTolerance * m * x);
  EXPECT_NEAR(result.bubble, 1 - m * x / (m * x + idle), kTolerance);
  EXPECT_NEAR(result.work, p * m * x, kTolerance * p * m * x);
}

TEST(ClosedForms, GPipe) {
  for_all(1, [](int p, int m, int) {
    const Schedule schedule = make("gpipe", p, m);
    const Simulation result = simulate(schedule, of_full_stage(schedule, kF, kI, kW));
    expect_makespan(result, p, m, (p - 1) * kX);
    for (const double kept : result.peak_activations) EXPECT_NEAR(kept, m, kTolerance);
  });
}

TEST(ClosedForms, OneForwardOneBackward) {
  for_all(1, [](int p, int m, int) {
    const Schedule schedule = make("1f1b", p, m);
    const Simulation result = simulate(schedule, of_full_stage(schedule, kF, kI, kW));
    expect_makespan(result, p, m, (p - 1) * kX);
    for (int rank = 0; rank < p; ++rank) {
      EXPECT_NEAR(result.peak_activations[static_cast<std::size_t>(rank)], std::min(p - rank, m), kTolerance);
    }
  });
}

// With less microbatches than ranks a rank waits for each round's first one to come back.
double interleaved_idle(int p, int m, int v) { return ((p - 1) + std::max(0, p - m) * (v - 1)) * kX / v; }

// Also where p does not divide m: rounds of unequal length cost nothing.
TEST(ClosedForms, Interleaved) {
  for_all(4, [](int p, int m, int v) {
    const Schedule schedule = make("interleaved_1f1b", p, m, v);
    const Simulation result = simulate(schedule, of_full_stage(schedule, kF, kI, kW));
    expect_makespan(result, p, m, interleaved_idle(p, m, v));
    if (m % p != 0) return;
    for (int rank = 0; rank < p; ++rank) {
      const double kept = ((v - 1) * p + 2 * (p - 1 - rank) + 1) / static_cast<double>(v);
      EXPECT_NEAR(result.peak_activations[static_cast<std::size_t>(rank)], std::min<double>(kept, m), kTolerance);
    }
  });
}

TEST(ClosedForms, LoopedBfs) {
  for_all(4, [](int p, int m, int v) {
    const Schedule schedule = make("looped_bfs", p, m, v);
    const Simulation result = simulate(schedule, of_full_stage(schedule, kF, kI, kW));
    expect_makespan(result, p, m, interleaved_idle(p, m, v));
    EXPECT_NEAR(peak(result), m, kTolerance);
  });
}

TEST(ClosedForms, ZeroBubbleWithOnesActivations) {
  for_all(1, [](int p, int m, int) {
    if (m < p) return;
    const Schedule schedule = make("zb_1p", p, m);
    const Simulation result = simulate(schedule, of_full_stage(schedule));
    expect_makespan(result, p, m, p - 1, 3);
    EXPECT_LE(peak(result), p + kTolerance);
  });
}

TEST(ClosedForms, ZeroBubbleWithTwiceTheActivationsHasNoBubbleOfSpan) {
  for_all(1, [](int p, int m, int) {
    if (m < 2 * p - 1) return;
    const Schedule schedule = make("zb_2p", p, m);
    const Simulation result = simulate(schedule, of_full_stage(schedule));
    EXPECT_NEAR(result.span, 3 * m, kTolerance * m);
    EXPECT_NEAR(result.makespan, 3 * m + p - 1, kTolerance * m);
    EXPECT_LE(peak(result), 2 * p - 1 + kTolerance);
  });
}

TEST(ClosedForms, InterleavedZeroBubble) {
  for_all(4, [](int p, int m, int v) {
    if (m < p) return;
    const Schedule schedule = make("interleaved_zero_bubble", p, m, v);
    const Simulation result = simulate(schedule, of_full_stage(schedule));
    expect_makespan(result, p, m, (p - 1.0) / v, 3);
    if (m % p != 0 || v != 2) return;
    for (const double kept : result.peak_activations) EXPECT_NEAR(kept, p, kTolerance);
  });
}

TEST(ClosedForms, ZeroBubbleInAV) {
  for_all(1, [](int p, int m, int) {
    if (m < 2 * p - 1) return;
    const Schedule schedule = make("zb_v", p, m, 2);
    const Simulation result = simulate(schedule, of_full_stage(schedule));
    expect_makespan(result, p, m, (p - 1) / 2.0, 3);
    EXPECT_NEAR(result.span, 3 * m, kTolerance * m);
    for (const double kept : result.peak_activations) EXPECT_NEAR(kept, p, kTolerance);
  });
}

TEST(ClosedForms, DualPipeV) {
  for_all(1, [](int p, int m, int) {
    if (m < 2 * p) return;
    const Schedule schedule = make("dualpipe_v", p, m, 2);
    const Simulation result = simulate(schedule, of_full_stage(schedule));
    expect_makespan(result, p, m, (p - 1) / 2.0, 3);
    for (const double kept : result.peak_activations) EXPECT_NEAR(kept, p + 0.5, kTolerance);
  });
}

TEST(ClosedForms, ForwardOnly) {
  for_all(4, [](int p, int m, int v) {
    if (m % p != 0) return;
    const Schedule schedule = make("forward_only", p, m, v);
    const Simulation result = simulate(schedule, of_full_stage(schedule, kF, kI, kW));
    EXPECT_NEAR(result.makespan, m * kF + (p - 1) * kF / v, kTolerance * m);
    EXPECT_NEAR(peak(result), 1.0 / v, kTolerance);
  });
}

TEST(ClosedForms, SmpInterleavedLiesBetweenOthersAndWithinItsBound) {
  for_all(1, [](int p, int m, int) {
    const Schedule schedule = make("smp_interleaved", p, m);
    const Simulation result = simulate(schedule, of_full_stage(schedule));
    EXPECT_NEAR(result.makespan, 3 * (m + p - 1), kTolerance * m);
    EXPECT_LE(peak(result), std::min(p + 2, m) + kTolerance);
    VerifyOptions options;
    options.active_microbatches = p + 2;
    options.checks = {Check::kMemoryCap};
    EXPECT_FALSE(verify(schedule, options));
  });
}

// 1F1B waits 2(p-1)/p hops per microbatch in its steady state, and 2(p-1) - 2 beyond that.
TEST(ClosedForms, HopsOfOneForwardOneBackward) {
  constexpr double kHop = 0.03125;
  for_all(1, [](int p, int m, int) {
    if (m % p != 0) return;
    const Schedule schedule = make("1f1b", p, m);
    Costs costs = of_full_stage(schedule, kF, kI, kW);
    costs.hop = kHop;
    const double hops = 2.0 * (p - 1) * m / p + 2 * (p - 1) - 2;
    EXPECT_NEAR(simulate(schedule, costs).makespan, m * kX + (p - 1) * kX + hops * kHop, kTolerance * m);
  });
}

TEST(ClosedForms, HopsOfInterleaved) {
  constexpr double kHop = 0.03125;
  for_all(4, [](int p, int m, int v) {
    if (m % p != 0 || v == 1) return;
    const Schedule schedule = make("interleaved_1f1b", p, m, v);
    Costs costs = of_full_stage(schedule, kF, kI, kW);
    costs.hop = kHop;
    EXPECT_NEAR(simulate(schedule, costs).makespan, m * kX + (p - 1) * kX / v + 2 * (p * v - 1) * kHop, kTolerance * m);
  });
}

struct Row {
  int p, m;
  double gpipe, one, looped, i2, i4, izb, zbv, dual;
};

// torch 2.13's orders replayed with F = I = W = 1.
TEST(Tables, MakespansOfTorchsOrders) {
  for (const Row& row :
       {Row{4, 8, 33, 33, 28.5, 28.5, 26.25, 25.5, 25.5, 25.5}, Row{4, 16, 57, 57, 52.5, 52.5, 50.25, 49.5, 49.5, 49.5},
        Row{8, 16, 69, 69, 58.5, 58.5, 53.25, 51.5, 51.5, 51.5},
        Row{8, 24, 93, 93, 82.5, 82.5, 77.25, 75.5, 75.5, 75.5}}) {
    const auto expect = [&](const char* name, int v, double makespan, double kept) {
      const Schedule schedule = make(name, row.p, row.m, v);
      const Simulation result = simulate(schedule, of_full_stage(schedule));
      EXPECT_DOUBLE_EQ(result.makespan, makespan) << name << " p " << row.p << " m " << row.m;
      EXPECT_DOUBLE_EQ(peak(result), kept) << name << " p " << row.p << " m " << row.m;
    };
    expect("gpipe", 1, row.gpipe, row.m);
    expect("1f1b", 1, row.one, row.p);
    expect("looped_bfs", 2, row.looped, row.m);
    expect("interleaved_1f1b", 2, row.i2, row.p + (row.p - 1) / 2.0);
    expect("interleaved_1f1b", 4, row.i4, row.p + (row.p - 1) / 4.0);
    expect("interleaved_zero_bubble", 2, row.izb, row.p);
    expect("zb_v", 2, row.zbv, row.p);
    expect("dualpipe_v", 2, row.dual, row.p + 0.5);
  }
}

struct VRow {
  int p, m;
  double half, half_share, min, min_share;
};

// The authors' schedules with F = I = W = 1 per virtual stage; shares are of 1F1B's activations.
TEST(Tables, NeverWorseThanTheAuthorsVHalfAndVMin) {
  for (const VRow& row :
       {VRow{4, 8, 53, 0.75, 59, 0.5}, VRow{8, 16, 113, 0.625, 123, 0.5}, VRow{8, 24, 161, 0.625, 171, 0.5},
        VRow{8, 32, 209, 0.625, 219, 0.5}, VRow{16, 48, 329, 0.5625, 347, 0.375}}) {
    const auto expect = [&](const char* name, double makespan, double share) {
      const Schedule schedule = make(name, row.p, row.m, 2);
      const Simulation result = simulate(schedule, uniform_costs(schedule.stages()));
      EXPECT_LE(result.makespan, makespan) << name << " p " << row.p << " m " << row.m;
      EXPECT_LE(peak(result), share * 2 * row.p) << name << " p " << row.p << " m " << row.m;
    };
    expect("v_half", row.half, row.half_share);
    expect("v_min", row.min, row.min_share);
  }
}

TEST(ClosedForms, ZeroBubbleKeepsItsPromiseWithHops) {
  for (const double hop : {0.0, 0.1, 0.5}) {
    for (int p = 2; p <= 8; ++p) {
      GenerateOptions options;
      options.stages = p;
      options.microbatches = 3 * p;
      options.costs = uniform_costs(p);
      options.costs->hop = hop;
      EXPECT_LE(peak(simulate(generate("zb_2p", options), *options.costs)), 2 * p - 1) << "p " << p << " hop " << hop;
    }
  }
}

// Seconds and bytes that differ by stage, seeded.
Costs random_costs(std::mt19937_64& random, int stages) {
  std::uniform_real_distribution<double> any(0.25, 2);
  Costs costs = uniform_costs(stages);
  for (auto* values : {&costs.forward, &costs.backward_input, &costs.backward_weight, &costs.activation_bytes}) {
    for (double& value : *values) value = any(random);
  }
  costs.hop = random() % 2 == 0 ? 0 : any(random) / 8;
  return costs;
}

TEST(Auto, NoNamedScheduleIsShorterOnRandomTimes) {
  std::mt19937_64 random(7);
  int compared = 0;
  for (int round = 0; round < 60; ++round) {
    GenerateOptions options;
    options.stages = 2 + static_cast<int>(random() % 4);
    options.microbatches = 1 + static_cast<int>(random() % 12);
    options.virtual_stages = 1 + round % 4;
    options.costs = random_costs(random, options.stages * options.virtual_stages);
    const double most = peak(simulate(generate("looped_bfs", options), *options.costs));
    if (round % 3 > 0) options.memory_cap = most * (0.4 + 0.2 * static_cast<double>(random() % 4));
    Schedule best;
    try {
      best = generate("auto", options);
    } catch (const InvalidArgument&) {
      ASSERT_TRUE(options.memory_cap);  // it is too small
    }
    for (const ScheduleInfo& info : schedule_names()) {
      if (info.name == "forward_only" || info.name == "auto") continue;
      if (info.virtual_stages > 0 && info.virtual_stages != options.virtual_stages) continue;
      if (!is_possible(std::string(info.name), options.stages, options.microbatches)) continue;
      const Simulation other = simulate(generate(info.name, options), *options.costs);
      if (options.memory_cap && peak(other) > *options.memory_cap) continue;
      ASSERT_FALSE(best.rows.empty()) << info.name << " keeps within the cap, round " << round;
      EXPECT_LE(simulate(best, *options.costs).makespan, other.makespan * (1 + 1e-12))
          << info.name << " round " << round;
      ++compared;
    }
  }
  EXPECT_GT(compared, 200);
}

TEST(Auto, TooManyVirtualStagesAreRefused) { EXPECT_THROW(make("auto", 2, 1, 65), InvalidArgument); }

// Stages of unequal times, hops, and a cap that rules some schedules out.
TEST(Auto, NoNamedScheduleWithinTheCapIsShorter) {
  for (const int v : {1, 2, 4}) {
    GenerateOptions options;
    options.stages = 4;
    options.microbatches = 12;
    options.virtual_stages = v;
    Costs costs = uniform_costs(4 * v, kF / v, kI / v, kW / v, 1.0 / v);
    costs.forward.back() *= 1.5;
    costs.backward_weight.front() *= 2;
    costs.hop = 0.125;
    options.costs = costs;
    for (const double cap : {1.5, 3.0, 4.5, 12.0}) {
      options.memory_cap = cap;
      const Schedule best = generate("auto", options);
      VerifyOptions checks;
      checks.costs = costs;
      checks.memory_cap = cap;
      const auto found = verify(add_send_recv(best), checks);
      EXPECT_FALSE(found) << found->message;
      const double makespan = simulate(best, costs).makespan;
      for (const ScheduleInfo& info : schedule_names()) {
        const std::string name(info.name);
        const std::vector<int> allowed = virtual_stages_of(name);
        if (name == "forward_only" || std::find(allowed.begin(), allowed.end(), v) == allowed.end()) continue;
        const Simulation other = simulate(generate(name, options), costs);
        if (peak(other) > cap) continue;
        EXPECT_LE(makespan, other.makespan * (1 + 1e-12)) << name << " v " << v << " cap " << cap;
      }
    }
  }
}

TEST(LowerBounds, NoScheduleBeatsThemOnRandomTimes) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    const std::vector<ScheduleInfo> all = schedule_names();
    const ScheduleInfo& info = all[random() % all.size()];
    const std::vector<int> counts = virtual_stages_of(std::string(info.name));
    GenerateOptions options;
    options.stages = 1 + static_cast<int>(random() % 6);
    options.microbatches = 1 + static_cast<int>(random() % 13);
    options.virtual_stages = counts[random() % counts.size()];
    if (!is_possible(std::string(info.name), options.stages, options.microbatches)) continue;
    options.costs = random_costs(random, options.stages * options.virtual_stages);
    const Schedule schedule = generate(info.name, options);
    const Simulation result = simulate(schedule, *options.costs);
    const LowerBounds bounds = lower_bounds(schedule, *options.costs);
    EXPECT_GE(result.makespan, bounds.makespan * (1 - 1e-12)) << info.name << " round " << round;
    EXPECT_GE(result.span, bounds.span * (1 - 1e-12)) << info.name << " round " << round;
  }
}

// A guard against something quadratic; docs/benchmarks.md has the time itself, a tenth of this.
TEST(Speed, LargeSchedulesTakeLessThanASecond) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
  GTEST_SKIP() << "the build is slow on purpose";
#endif
  const auto begin = std::chrono::steady_clock::now();
  const Schedule schedule = make("interleaved_1f1b", 64, 512, 4);
  const Simulation result = simulate(schedule, of_full_stage(schedule));
  EXPECT_FALSE(verify(schedule));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1)) << result.makespan;
}

TEST(LowerBounds, NoScheduleBeatsThem) {
  for (const ScheduleInfo& info : schedule_names()) {
    const std::string name(info.name);
    for (const int v : virtual_stages_of(name)) {
      for (int p = 1; p <= 6; ++p) {
        for (const int m : {1, 2, 3, 5, 8, 13}) {
          if (!is_possible(name, p, m)) continue;
          const Schedule schedule = make(name, p, m, v);
          for (const double hop : {0.0, 0.25}) {
            Costs costs = of_full_stage(schedule, kF, kI, kW);
            costs.hop = hop;
            const Simulation result = simulate(schedule, costs);
            const LowerBounds bounds = lower_bounds(schedule, costs);
            EXPECT_GE(result.makespan, bounds.makespan * (1 - 1e-12)) << name << " p " << p << " m " << m << " v " << v;
            EXPECT_GE(result.span, bounds.span * (1 - 1e-12)) << name << " p " << p << " m " << m << " v " << v;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace smdp::pipeline
