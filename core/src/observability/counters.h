// Counters of the process, behind the figures of smdp/observability.h. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smdp/observability.h"

namespace smdp {

// operation, algorithm: string literals.
void count_operation(const char* operation, const char* algorithm, std::size_t bytes, double seconds);
// Adds the time that a step waited for communication.
void count_exposed(double seconds);
// rank_seconds: computing time in this step, by rank of the world.
void count_step(std::size_t bytes, double exposed_seconds, const std::vector<double>& rank_seconds);
// If traces are written: records that a step computed, from the end of the previous one (number 0: unknown), and then
// waited for communication.
void trace_step(const std::string& group, std::uint64_t number, TimePoint last_end, TimePoint begin, TimePoint end);

}  // namespace smdp
