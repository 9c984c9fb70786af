// Counters of the process, behind the figures of smdp/observability.h. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "smdp/observability.h"

namespace smdp {

// operation, algorithm: string literals.
void count_operation(const char* operation, const char* algorithm, std::size_t bytes, double seconds);
// Of a step that waits for communication.
void count_exposed(double seconds);
// Since the last call in this process, without what was exposed: models may take turns.
double seconds_computed(TimePoint now);
// rank_seconds: by rank of the world, of this step.
void count_step(std::size_t bytes, double exposed_seconds, const std::vector<double>& rank_seconds);

}  // namespace smdp
