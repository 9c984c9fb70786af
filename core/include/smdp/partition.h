// Cuts a model into pipeline stages. The search is exact: it minimizes the time of a step under a cap on memory.
//
// Letters: n units, p ranks, v virtual stages per rank, S = p v stages, m microbatches, t_k seconds of stage k for one
// microbatch (forward and backward), X = max t_k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smdp/export.h"

namespace smdp::partition {

// The smallest piece, which is never cut. Seconds and bytes are those of one microbatch.
struct Unit {
  std::string name;             // dotted path of its module; the dots give the tree of modules
  double forward = 0;           // s
  double backward_input = 0;    // s, gradient of its input
  double backward_weight = 0;   // s, gradient of its weights
  double parameter_bytes = 0;   // of all parameters that it uses, including tied ones
  double activation_bytes = 0;  // kept from forward to backward
  double cut_bytes = 0;         // bytes that cross a cut right behind it, in one direction
  int stage = -1;               // virtual stage that it is pinned to; -1: any
};

// Parameters shared by several units.
struct Tied {
  double bytes = 0;                // included in the parameter_bytes of each of the units
  std::vector<std::size_t> units;  // two or more, ascending
};

struct Problem {
  std::vector<Unit> units;  // in execution order
  std::vector<Tied> tied;
  int ranks = 1;
  int virtual_stages = 1;  // per rank
  // Rank of each virtual stage, instead of virtual_stages; requires that every unit is pinned. Empty: the schedule's
  // placement.
  std::vector<int> rank_of = {};
  int microbatches = 1;
  std::string schedule = "1f1b";  // a name of smdp/pipeline/generate.h
  int active_microbatches = 0;    // for smp_interleaved; 0: ranks + 2
  // "pipeline": the shortest step. "sum": the smallest sum below. "bottleneck": the smallest X, then the smallest sum.
  // "smp": the documented algorithm of SageMaker's library, for comparison; it ignores cuts and caps.
  std::string algorithm = "pipeline";
  double memory_cap = 0;     // bytes per rank; 0: none
  double state_factor = 4;   // bytes of parameters, gradients and optimizer per byte of parameters; 4 for Adam in fp32
  double memory_weight = 0;  // 0 to 1: weight of the balance of bytes against the balance of seconds
  bool is_tied_together = false;  // units that share parameters must be on one stage
  double latency = 0;             // s, of one transfer between stages
  double bandwidth = 0;           // bytes per second of a link; 0: transfers take only the latency
};

struct Stage {
  std::vector<std::size_t> units;  // contiguous, except for "smp"
  int rank = 0;
  double forward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  double parameter_bytes = 0;   // parameters that units of the stage share count once
  double activation_bytes = 0;  // of one microbatch
  double memory_bytes = 0;      // states, and activations of the microbatches in flight
  double cut_bytes = 0;         // sent to the next stage

  double seconds() const { return forward + backward_input + backward_weight; }
};

struct Partition {
  std::vector<Stage> stages;
  double bottleneck = 0;  // s, X
  double step = 0;        // s, predicted: simulated with the schedule, including the reduction of tied gradients
  double bubble = 0;      // 1 - work / (p x makespan), simulated
  std::vector<double> peak_bytes;  // per rank
  std::string schedule;            // the simulated schedule: the requested one, or what replaces "auto" under a cap
  double activation_cap = 0;       // bytes per rank that "auto" was given; 0: none
  std::string reason;              // one sentence: which stage is the slowest, and why moving a unit does not help
};

// Returns the best partition. Deterministic: among equal partitions "sum" and "bottleneck" take the one with the
// earliest cuts.
//
// "sum" minimizes  sum t_k + (m - 1) X + 2 sum hop_k + tied  over all cuts. hop_k is the latency plus cut_bytes /
// bandwidth of the k-th cut; `tied` is the latency plus bytes / bandwidth for each further stage that uses a group's
// parameters, which for two stages is exactly an all-reduce. The sum is an upper bound of 1F1B's step, except for the
// hops that its steady state waits for, and equals GPipe's step if all stages have the same ratio of forward to
// backward. The memory of stage k is state_factor times its parameter_bytes, plus activation_bytes times the
// microbatches in flight by closed form (smdp/memory.h); this is exact for these two schedules and a bound for others.
// With several stages per rank, "sum" and "bottleneck" do not support a cap.
//
// "pipeline" lets the simulator choose among all cuts. If that would take more than about a second, 1F1B and GPipe with
// one stage per rank, and any problem with a memory_weight there, start from the cut of "sum" and move single cuts as
// long as the simulated step becomes shorter. Otherwise the simulator chooses, also by bytes, among the partitions that
// are Pareto-optimal in (X, the rest of the sum) and the one that needs the least memory, and then moves single cuts of
// the best one.
//
// Throws InvalidArgument if a value is invalid (with field, value and the valid values); if no partition fits (with the
// smallest sufficient cap and, for 1F1B and GPipe, the smallest sufficient number of ranks); or if pins and tied units
// rule out every partition (with the nearest number of ranks that would work).
SMDP_API Partition partition(const Problem& problem);

}  // namespace smdp::partition
