// What the memory model asks about a schedule besides in_flight().
#pragma once

#include <string>

namespace smdp::memory {

// Virtual stages 0 and 2p - 1 lie on rank 0.
bool is_v_shape(const std::string& schedule);

// So that the logits of every microbatch wait for its backward.
bool runs_all_forwards_first(const std::string& schedule);

}  // namespace smdp::memory
