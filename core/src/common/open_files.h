// The descriptors of this process: as many as it may have, and a few in reserve, by which a rank that has run out of
// them can still tell the others why.
#pragma once

#include "common/shortage.h"
#include "smdp/limits.h"

namespace smdp {

// Ranks are about to meet: raises the limit, see smdp/limits.h, and fills the reserve. Notes a shortage.
void prepare_open_files();

// Closes the reserve, for who needs it now.
void free_reserve();

// A shortage that was met on the way to the other ranks, by a thread that cannot tell them, or before they could be
// told: whoever makes a group in this process throws it. Dropped where nobody meets.
void note_shortage(const ShortageError& error);
void throw_noted_shortage();
// All have met: drops what was noted, and closes the reserve.
void release_open_files();

}  // namespace smdp
