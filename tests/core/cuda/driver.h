// What tests ask of the driver that stands in for CUDA's (driver.cpp), besides cuda.h's functions.
#pragma once

#include <cstddef>

// Which copies fail, those to the host, there in two ways, or to the device; everything after one that has fails, too.
enum class StandInFailure { kNone, kAtOnce, kWhileItRuns, kOnTheWayBack };

extern "C" {
void stand_in_fail(StandInFailure how);
// Copies of each kind since the last call.
struct StandInCopies {
  int to_host = 0;
  int to_device = 0;
  int within = 0;
};
StandInCopies stand_in_copies();
// Streams with something to do.
int stand_in_busy();
// What has been made and is not freed: contexts, streams, events, memory, pinned memory.
int stand_in_left();
}
