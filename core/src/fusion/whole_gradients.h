// Owners of gradients that must not be cut.
#pragma once

#include <cstddef>
#include <vector>

#include "fusion/layout.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// Gives every gradient that must not be cut to one of `owners` ranks, and moves those of an owner next to each other
// within their buffer. The largest gradients are given first, each to the owner with the fewest bytes.
void give_to_owners(Layout& layout, const std::vector<Gradient>& gradients, std::size_t owners);

}  // namespace smdp
