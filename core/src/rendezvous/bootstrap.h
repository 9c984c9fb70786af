// From a store to a connected group: who is there, who shares this host, and the connections between all.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/file_descriptor.h"
#include "smdp/group.h"
#include "smdp/store.h"
#include "transport/members.h"
#include "transport/shm/segment.h"

namespace smdp {

struct Connections {
  Members members;
  std::shared_ptr<Segment> segment;               // of the local ranks
  std::vector<FileDescriptor> eventfds;           // doorbells, by local rank
  std::vector<std::vector<FileDescriptor>> data;  // by rank: streams for collectives; empty for local ranks
  std::vector<FileDescriptor> mail;               // by rank: stream for point to point; empty for local ranks
  std::vector<FileDescriptor> control;            // on rank 0 by rank, elsewhere one, to rank 0
};

// The keys of a group.
std::shared_ptr<Store> view_for_group(std::shared_ptr<Store> base, const std::string& name,
                                      std::function<bool()> interrupted);

// Rank 0 has await_farewells() to call, once it can tell who is gone. Throws TimeoutError, which lists who came and who
// did not, ConfigError, or Error.
Connections bootstrap(Store& store, int rank, int size, const GroupOptions& options);

}  // namespace smdp
