// Results that leave the caches alone, for those that would not stay in them anyway: without fetching a line before it
// is written, a third of the memory traffic of a copy is saved. Plain where the processor cannot (all but x86-64).
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstddef>

#include "reduce/reduce.h"

namespace smdp {

// As memcpy, written past the caches. Ordered before all later writes.
void copy_streamed(void* to, const void* from, std::size_t bytes) noexcept;

// As reduce(), written past the caches; dst overlaps no source. Ordered before all later writes.
void reduce_streamed(void* dst, const void* const* sources, std::size_t k, std::size_t count, const Reduction& r);

// Whether memory of this size exceeds the last cache, as the system tells it; 32 MiB where it does not.
bool exceeds_caches(std::size_t bytes) noexcept;

}  // namespace smdp
