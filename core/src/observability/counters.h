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
// Of a step that waits for communication.
void count_exposed(double seconds);
// rank_seconds: by rank of the world, of this step.
void count_step(std::size_t bytes, double exposed_seconds, const std::vector<double>& rank_seconds);
// If traces are written: that a step computed, from the end of the one before (number 0: that is not known), and then
// waited for communication.
void trace_step(const std::string& group, std::uint64_t number, TimePoint last_end, TimePoint begin, TimePoint end);

}  // namespace smdp
