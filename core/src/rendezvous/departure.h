// The store may live in rank 0's process, whose program may end as soon as it has its group, or knows why it has none.
// So rank 0 stays until the others have read what they need.
#pragma once

#include <functional>
#include <vector>

#include "smdp/store.h"

namespace smdp {

// What a rank other than 0 does after its last look at the store. Never throws.
void announce_departure(Store& store, int rank);

// What rank 0 does before it returns: waits until these have announced that they leave, up to 3 s in all, and not for
// those of which `is_gone` is true. Both functions may be empty. Throws what ends the wait where `interrupted`
// (Ctrl-C), nothing else.
void await_departures(Store& store, const std::vector<int>& others, const std::function<bool()>& interrupted,
                      const std::function<bool(int rank)>& is_gone = {});

// Ranks 1 to size - 1.
std::vector<int> all_but_first(int size);

}  // namespace smdp
