// Buffers of one call that share memory in a way that gives wrong results: InvalidArgument.
#pragma once

#include <vector>

#include "collectives/local.h"
#include "transport/members.h"

namespace smdp {

// The input and the output may be the same memory, or lie apart.
void check_apart(const Members& members, const char* operation, ConstBytes in, ConstBytes out);

// Blocks, one per rank: an input may be the same memory as the output `own`, and outputs the same as each other; all
// else must lie apart. Inputs may share what they like.
void check_apart(const Members& members, const char* operation, const std::vector<ConstBytes>& in,
                 std::vector<ConstBytes> out, ConstBytes own);

}  // namespace smdp
