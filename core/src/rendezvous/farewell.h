// The store may live in rank 0's process, whose program may end as soon as it has its group, or knows why it has none.
#pragma once

#include <vector>

#include "smdp/store.h"

namespace smdp {

// What a rank does after its last look at the store: rank 0 stays until all of `others` have called this, or for 3 s,
// as one of them may have died. Never throws.
void say_farewell(Store& store, int rank, const std::vector<int>& others);

// Ranks 1 to size - 1.
std::vector<int> all_but_first(int size);

}  // namespace smdp
