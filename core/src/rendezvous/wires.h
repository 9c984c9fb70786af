// The connections that a rank has made to the others of its group so far.
#pragma once

#include <memory>
#include <vector>

#include "common/file_descriptor.h"
#include "transport/members.h"
#include "transport/progress.h"
#include "transport/shm/peer_doorbells.h"
#include "transport/shm/segment.h"

namespace smdp {

struct Wires {
  Members members;
  std::shared_ptr<Segment> segment;               // shared by the local ranks
  std::shared_ptr<Progress> progress;             // of the group
  std::vector<Doorbell> doorbells;                // by local rank
  std::vector<std::vector<FileDescriptor>> data;  // by rank: streams for collectives; empty for local ranks
  std::vector<FileDescriptor> mail;               // by rank: stream for point-to-point messages; empty for local ranks
  std::vector<FileDescriptor> control;            // by rank on rank 0; on other ranks one connection, to rank 0
};

}  // namespace smdp
