// Counters of a process, and a trace in Chrome's format.
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
  std::uint64_t bytes = 0;  // of this rank's tensors, not of network traffic
  double seconds = 0;       // from begin to end on this rank, including the wait for other ranks
};
SMDP_API std::vector<OperationCount> operation_counts();

// Steps of all gradient reducers of the process, and steps counted by count_reduced_step().
struct StepCount {
  std::uint64_t steps = 0;
  std::uint64_t bytes = 0;             // of gradients
  double exposed_seconds = 0;          // communication time that the step waited for
  double last_exposed_seconds = 0;     // of the last step
  double input_seconds = 0;            // time spent waiting for input data
  std::vector<double> rank_seconds;    // by rank: time between the end of one step's communication and the next step's
  std::vector<std::uint64_t> slowest;  // by rank: number of steps in which it was the slowest
};
SMDP_API StepCount step_count();
// Returns the seconds since the last call in this process, minus exposed communication. Several models may call it in
// turn.
SMDP_API double seconds_computed(TimePoint now);

// A step in which a framework's own reducer averaged gradients. GradientReducer counts its own steps.
struct ReducedStep {
  std::string group;                      // name for the trace, different for each model; its ranks took part
  std::uint64_t number = 0;               // of this model's steps, from 0
  std::size_t bytes = 0;                  // of gradients
  TimePoint last_end{};                   // of the previous step
  TimePoint begin{};                      // when backward ended
  TimePoint end{};                        // when all gradients had arrived
  std::vector<double> rank_seconds = {};  // computing time of each rank of the world; empty: unknown
};
SMDP_API void count_reduced_step(const ReducedStep& step);
// Counts one wait of the framework for input data.
SMDP_API void count_input(TimePoint begin, TimePoint end);

// SMDP_TRACE names a directory, in which every process writes a file with one event per line. Any thread may call
// these.
namespace trace {

using Arguments = std::vector<std::pair<std::string, std::string>>;  // values as JSON

// Returns whether events are recorded; false also once the file is full.
SMDP_API bool is_on();
// Sets the size limit of a trace file in bytes, also of one that is open; default 256 MiB. The last event of a full
// file, "trace is full", says that later events are missing.
SMDP_API void set_limit(std::size_t bytes);
// Records a span. `track` is a line of the timeline.
SMDP_API void span(const std::string& track, const std::string& category, const std::string& name, TimePoint begin,
                   TimePoint end, const Arguments& arguments = {});
// Returns the text as a JSON string, quotes included.
SMDP_API std::string quoted(const std::string& text);

}  // namespace trace
}  // namespace smdp
