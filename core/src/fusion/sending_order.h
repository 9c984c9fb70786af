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
// kept: buffers that go in the order of the buffers, before those that are expected to wait. Returns numbers of
// buffers. The source of the idea: Jayarajan et al., Priority-based Parameter Propagation for Distributed DNN Training,
// MLSys 2019.
std::vector<std::size_t> sending_order(const std::vector<PlannedBuffer>& buffers, std::size_t kept);

// How many to keep in the next step. over: buffers whose sums were there when backward ended, the most of all ranks:
// one more is taken to be under way then. Where all that were kept were over, what was filled behind them has waited
// for nothing, so twice as many are kept.
std::size_t next_kept(std::size_t kept, std::size_t over, std::size_t buffers);

}  // namespace smdp
