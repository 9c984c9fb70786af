// Which of several fusion buffers that wait goes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fusion/layout.h"

namespace smdp {

// The next forward needs the front layers first, whose gradients come last. While backward produces gradients, buffers
// go as they are filled; those that wait when it ends, the one with the first parameter in front.
//
// over: 1 + buffers of the last step whose sums were there when backward ended, the most of all ranks; 0 keeps the
// order of the buffers, which is as good where nobody waits for single gradients. Two more than were over are taken to
// be under way then. Were that too few, buffers that are filled would wait for one that is not; but then more are over
// at the end of backward, so the next step takes more.
//
// Returns numbers of buffers. The source of the idea: Jayarajan et al., Priority-based Parameter Propagation for
// Distributed DNN Training, MLSys 2019.
std::vector<std::size_t> sending_order(const std::vector<PlannedBuffer>& buffers, std::uint32_t over);

}  // namespace smdp
