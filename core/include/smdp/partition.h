// How a model is cut into pipeline stages: exactly, for the time of a step under a cap of memory.
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

// The smallest piece that is never cut. Seconds and bytes are of one microbatch.
struct Unit {
  std::string name;             // dotted path of its module; the dots tell the tree of modules
  double forward = 0;           // s
  double backward_input = 0;    // s, gradient of its input
  double backward_weight = 0;   // s, gradient of its weights
  double parameter_bytes = 0;   // of all parameters it uses, tied ones too
  double activation_bytes = 0;  // kept from forward to backward
  double cut_bytes = 0;         // that cross a cut right behind it, in one direction
  int stage = -1;               // the virtual stage it is pinned to; -1: any
};

// Parameters that several units share.
struct Tied {
  double bytes = 0;                // in the parameter_bytes of every one of those units
  std::vector<std::size_t> units;  // two or more, ascending
};

struct Problem {
  std::vector<Unit> units;  // in execution order
  std::vector<Tied> tied;
  int ranks = 1;
  int virtual_stages = 1;  // per rank
  // Rank of each virtual stage, in place of virtual_stages, where every unit is pinned; empty: the schedule's
  // placement.
  std::vector<int> rank_of = {};
  int microbatches = 1;
  std::string schedule = "1f1b";  // as smdp/pipeline/generate.h names them
  int active_microbatches = 0;    // of smp_interleaved; 0: ranks + 2
  // "pipeline": the shortest step; "sum": the smallest of the sum below, "bottleneck": of X, then of that sum; "smp":
  // the documented algorithm of SageMaker's library, for comparison, which looks at neither cuts nor caps.
  std::string algorithm = "pipeline";
  double memory_cap = 0;     // bytes per rank; 0: none
  double state_factor = 4;   // bytes of parameters, gradients and optimizer per byte of parameters; Adam in fp32: 4
  double memory_weight = 0;  // 0 to 1: how far balance of bytes counts instead of balance of seconds
  bool is_tied_together = false;  // units that share parameters must lie on one stage
  double latency = 0;             // s, of one transfer between stages
  double bandwidth = 0;           // bytes per second of a link; 0: transfers take the latency alone
};

struct Stage {
  std::vector<std::size_t> units;  // contiguous, unless by "smp"
  int rank = 0;
  double forward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  double parameter_bytes = 0;   // parameters that units of the stage share count once
  double activation_bytes = 0;  // of one microbatch
  double memory_bytes = 0;      // states, and activations of the microbatches in flight
  double cut_bytes = 0;         // that go on to the next stage

  double seconds() const { return forward + backward_input + backward_weight; }
};

struct Partition {
  std::vector<Stage> stages;
  double bottleneck = 0;           // s, X
  double step = 0;                 // s, predicted: simulated with the schedule, and tied gradients reduced
  double bubble = 0;               // 1 - work / (p x makespan), simulated
  std::vector<double> peak_bytes;  // per rank
  std::string schedule;            // that was simulated: the one asked for, or what stands in for "auto" under a cap
  double activation_cap = 0;       // bytes per rank that "auto" was given; 0: none
  std::string reason;              // one sentence: which stage is the slowest, and why no unit moves
};

// The best partition. Deterministic; of equal ones "sum" and "bottleneck" take that whose cuts come first.
//
// "sum" minimises  sum t_k + (m - 1) X + 2 sum hop_k + tied,  over all cuts, where hop_k is the latency plus cut_bytes
// / bandwidth of the k-th cut, and `tied` is latency plus bytes / bandwidth for each further stage that uses a group's
// parameters: for two stages exactly an all-reduce. It is what 1F1B takes at most, but for the hops that its steady
// state waits for; GPipe's step, too, where all stages have one ratio of forward to backward. Memory of stage k:
// state_factor times its parameter_bytes, plus activation_bytes times the microbatches in flight by closed form
// (smdp/memory.h), which is exact for these two and a bound for other schedules; with several stages per rank "sum" and
// "bottleneck" take no cap.
// "pipeline": the simulator decides between all cuts. Where that would take more than about a second, 1F1B and GPipe
// with one stage per rank, and any memory_weight there, start from the cut of "sum" and move single cuts as long as the
// simulated step becomes shorter; otherwise the simulator decides, about bytes as well, between those that are
// Pareto-optimal in (X, the rest of the sum) and that which holds the least, and what moving single cuts makes of the
// best.
//
// Throws InvalidArgument: a value is wrong, with field, value and what is allowed; or no cut fits, with the smallest
// cap and, for 1F1B and GPipe, the smallest number of ranks that would do; or pins and tied units forbid all cuts, with
// the nearest number of ranks that would do.
SMDP_API Partition partition(const Problem& problem);

}  // namespace smdp::partition
