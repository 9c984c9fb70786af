// The store may live in rank 0's process, whose program may end as soon as it has its group, or knows why it has none.
// Rank 0 therefore stays until the others have read what they need.
#pragma once

#include <functional>
#include <vector>

#include "smdp/store.h"

namespace smdp {

// Called by a rank other than 0 after its last use of the store. Never throws.
void announce_departure(Store& store, int rank);

// Called by rank 0 before it returns: waits until the other ranks have announced that they leave, at most 3 s in all,
// and not for ranks for which `is_gone` returns true. Both functions may be empty. Throws only what ends the wait when
// `interrupted` (Ctrl-C) returns true.
void await_departures(Store& store, const std::vector<int>& others, const std::function<bool()>& interrupted,
                      const std::function<bool(int rank)>& is_gone = {});

// Returns ranks 1 to size - 1.
std::vector<int> all_but_first(int size);

}  // namespace smdp
