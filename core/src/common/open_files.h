// The descriptors of this process: raises their limit, and keeps a few in reserve, with which a rank that has run out
// of descriptors can still tell the others why.
#pragma once

#include "common/shortage.h"
#include "smdp/limits.h"

namespace smdp {

// Called before ranks meet: raises the limit, see smdp/limits.h, and fills the reserve. Notes a shortage.
void prepare_open_files();

// Closes the reserve for a caller that needs descriptors now.
void free_reserve();

// Notes a shortage that a thread met but cannot report to the other ranks, or not yet. The next group made in this
// process throws it. Dropped if no group is made.
void note_shortage(const ShortageError& error);
void throw_noted_shortage();
// Called once all ranks have met: drops what was noted and closes the reserve.
void release_open_files();

}  // namespace smdp
