// What the memory model asks about a schedule, apart from in_flight().
#pragma once

#include <string>

namespace smdp::memory {

// Returns whether virtual stages 0 and 2p - 1 are on rank 0.
bool is_v_shape(const std::string& schedule);

// If so, the logits of every microbatch wait for its backward.
bool runs_all_forwards_first(const std::string& schedule);

}  // namespace smdp::memory
