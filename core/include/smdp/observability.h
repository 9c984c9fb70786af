// What a process has done: counters, and a trace in Chrome's format.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "smdp/export.h"

namespace smdp {

using TimePoint = std::chrono::steady_clock::time_point;

// Operations of one kind that one algorithm carried out, over all groups of the process.
struct OperationCount {
  std::string operation;
  std::string algorithm;
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;  // of this rank's tensors, not of the network
  double seconds = 0;       // between its begin here and its end here; waiting for other ranks counts
};
SMDP_API std::vector<OperationCount> operation_counts();

// Steps of all gradient reducers of the process, and of what is counted by count_reduced_step().
struct StepCount {
  std::uint64_t steps = 0;
  std::uint64_t bytes = 0;             // of gradients
  double exposed_seconds = 0;          // that nothing hid: the step waited
  double last_exposed_seconds = 0;     // of the last step
  double input_seconds = 0;            // spent waiting for input data
  std::vector<double> rank_seconds;    // by rank: between the end of one step's communication and the next one's
  std::vector<std::uint64_t> slowest;  // by rank: steps in which it took longest
};
SMDP_API StepCount step_count();
// Since the last call in this process, without what was exposed: models may take turns.
SMDP_API double seconds_computed(TimePoint now);

// A step in which a framework's own reducer averaged gradients. GradientReducer counts its steps itself.
struct ReducedStep {
  std::string group;                      // whose ranks took part, for the trace; another name for each model
  std::uint64_t number = 0;               // of steps of that model, from 0
  std::size_t bytes = 0;                  // of gradients
  TimePoint last_end{};                   // of the step before
  TimePoint begin{};                      // backward was over
  TimePoint end{};                        // all gradients were there
  std::vector<double> rank_seconds = {};  // by rank of the world, that they computed; empty: not known
};
SMDP_API void count_reduced_step(const ReducedStep& step);
// One of the framework's waits for input data.
SMDP_API void count_input(TimePoint begin, TimePoint end);

// SMDP_TRACE names a directory: every process writes a file there, one event per line. Any thread.
namespace trace {

using Arguments = std::vector<std::pair<std::string, std::string>>;  // values as JSON

// Also false once the file is full.
SMDP_API bool is_on();
// Bytes of a file, default 256 MiB, of any that is open, too. A last event, "trace is full", says that later ones are
// not there.
SMDP_API void set_limit(std::size_t bytes);
// track: a line of the timeline.
SMDP_API void span(const std::string& track, const std::string& category, const std::string& name, TimePoint begin,
                   TimePoint end, const Arguments& arguments = {});
// Text as a JSON string, quotes included.
SMDP_API std::string quoted(const std::string& text);

}  // namespace trace
}  // namespace smdp
