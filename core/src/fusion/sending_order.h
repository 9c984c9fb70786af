// Decides which of several waiting fusion buffers is sent first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fusion/layout.h"

namespace smdp {

// Returns numbers of buffers in the order in which they are sent. The next forward needs the front layers first, whose
// gradients come last. While backward produces gradients, buffers are sent as they are filled. Of those that wait when
// it ends, the one with the first parameter is sent first. kept: number of buffers at the front that keep their order,
// before those that are expected to wait.
//
// Source of the idea: Jayarajan et al., Priority-based Parameter Propagation for Distributed DNN Training, MLSys 2019.
std::vector<std::size_t> sending_order(const std::vector<PlannedBuffer>& buffers, std::size_t kept);

// Returns how many buffers keep their order in the next step. over: buffers whose sums were there when backward ended,
// the maximum over all ranks; one more is assumed to be in flight then. If all kept buffers were over, later ones
// waited in vain, so the number is doubled.
std::size_t next_kept(std::size_t kept, std::size_t over, std::size_t buffers);

}  // namespace smdp
