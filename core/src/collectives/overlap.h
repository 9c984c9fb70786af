// Throws InvalidArgument for buffers of one call that overlap in a way that gives wrong results.
#pragma once

#include <vector>

#include "collectives/local.h"
#include "transport/members.h"

namespace smdp {

// The input and the output must be the same memory or not overlap.
void check_apart(const Members& members, const char* operation, ConstBytes in, ConstBytes out);

// Blocks, one per rank: an input may be the same memory as the output `own`, and outputs the same as each other; all
// others must not overlap. Inputs may overlap each other.
void check_apart(const Members& members, const char* operation, const std::vector<ConstBytes>& in,
                 std::vector<ConstBytes> out, ConstBytes own);

}  // namespace smdp
