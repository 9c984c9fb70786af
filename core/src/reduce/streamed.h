// Writes results past the caches, if they would not stay there anyway. Because lines are not fetched before they are
// written, this saves a third of the memory traffic of a copy. Without processor support (all but x86-64) it writes
// normally.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstddef>

#include "reduce/reduce.h"

namespace smdp {

// Like memcpy, but written past the caches. Ordered before all later writes.
void copy_streamed(void* to, const void* from, std::size_t bytes) noexcept;

// Like reduce(), but written past the caches; dst must not overlap the sources. Ordered before all later writes.
void reduce_streamed(void* dst, const void* const* sources, std::size_t k, std::size_t count, const Reduction& r);

// Returns whether memory of this size exceeds the last-level cache, as reported by the system, or else 32 MiB.
bool exceeds_caches(std::size_t bytes) noexcept;

}  // namespace smdp
