// Microbatches in flight, by formula, against what simulated schedules keep.
#include <gtest/gtest.h>

#include <string>

#include "pipeline/schedules.h"
#include "smdp/memory.h"

namespace smdp::memory {
namespace {

// What the formula says beyond the simulated peak, of the rank where that is least and of the one where it is most.
struct Excess {
  double least = 0;
  double most = 0;
};

Excess excess_of(const std::string& name, int p, int m, int v) {
  const pipeline::Schedule schedule = pipeline::make(name, p, m, v);
  const pipeline::Simulation result = pipeline::simulate(schedule, pipeline::of_full_stage(schedule));
  Excess excess{1e9, 0};
  for (int rank = 0; rank < p; ++rank) {
    const double beyond = in_flight(name, p, rank, m, v) - result.peak_activations[static_cast<std::size_t>(rank)];
    excess.least = std::min(excess.least, beyond);
    excess.most = std::max(excess.most, beyond);
  }
  return excess;
}

// Where every rank keeps what its formula says, for any numbers; others are above on some ranks or with few
// microbatches.
bool is_exact(const std::string& name, int p, int m) {
  for (const char* exact :
       {"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zb_1p", "dualpipe_v"}) {
    if (name == exact) return true;
  }
  return name == "zb_v" && m >= 2 * p - 1;
}

TEST(InFlight, IsNeverBelowWhatASimulatedScheduleKeeps) {
  for (const pipeline::ScheduleInfo& info : pipeline::schedule_names()) {
    const std::string name(info.name);
    if (name == "forward_only" || name == "auto") continue;  // keep nothing; have no formula
    for (const int v : pipeline::virtual_stages_of(name)) {
      for (int p = 1; p <= 9; ++p) {
        for (int m = 1; m <= 24; ++m) {
          if (!pipeline::is_possible(name, p, m)) continue;
          const Excess excess = excess_of(name, p, m, v);
          ASSERT_GE(excess.least, -1e-9) << name << " p " << p << " m " << m << " v " << v;
          if (is_exact(name, p, m)) {
            ASSERT_LE(excess.most, 1e-9) << name << " p " << p << " m " << m << " v " << v;
          }
        }
      }
    }
  }
}

// Not far above either: what is kept for the fullest rank counts for all.
TEST(InFlight, IsMetByTheFullestRank) {
  for (const char* name : {"zb_2p", "v_half"}) {
    for (int p = 2; p <= 9; ++p) {
      EXPECT_NEAR(excess_of(name, p, 4 * p, pipeline::virtual_stages_of(name).front()).least, 0, 1e-9)
          << name << " p " << p;
    }
  }
}

// However many virtual stages: at most active_microbatches are between their first forward and their last backward.
TEST(InFlight, ActiveMicrobatchesBoundSmpInterleaved) {
  for (int p = 1; p <= 6; ++p) {
    for (const int m : {1, 3, 8, 13}) {
      for (int v = 1; v <= 4; ++v) {
        for (int active = 1; active <= p + 3; ++active) {
          SCOPED_TRACE("p " + std::to_string(p) + " m " + std::to_string(m) + " v " + std::to_string(v) + " active " +
                       std::to_string(active));
          pipeline::GenerateOptions options;
          options.stages = p;
          options.microbatches = m;
          options.virtual_stages = v;
          options.active_microbatches = active;
          const pipeline::Schedule schedule = pipeline::generate("smp_interleaved", options);
          const pipeline::Simulation result = pipeline::simulate(schedule, pipeline::of_full_stage(schedule));
          double most = 0;
          for (int rank = 0; rank < p; ++rank) {
            const double kept = result.peak_activations[static_cast<std::size_t>(rank)];
            ASSERT_LE(kept, in_flight("smp_interleaved", p, rank, m, v, active) + 1e-9) << "rank " << rank;
            most = std::max(most, kept);
          }
          if (active <= p && m >= 2 * p) {
            EXPECT_NEAR(most, in_flight("smp_interleaved", p, 0, m, v, active), 1e-9) << "it is met";
          }
        }
      }
    }
  }
}

// One round of 7; two rounds of 9 and 8.
TEST(InFlight, RoundsGrowWhereRanksDoNotDivideMicrobatches) {
  EXPECT_EQ(in_flight("interleaved_1f1b", 4, 0, 7, 4), 7);
  EXPECT_EQ(in_flight("interleaved_1f1b", 4, 3, 7, 4), 5.5);
  EXPECT_EQ(in_flight("interleaved_zero_bubble", 9, 0, 17, 4), 15);
}

}  // namespace
}  // namespace smdp::memory
