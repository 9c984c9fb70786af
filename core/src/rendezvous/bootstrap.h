// From a store to a connected group: finds the ranks and hosts, and makes all connections.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/file_descriptor.h"
#include "smdp/internal/group_setup.h"
#include "smdp/store.h"
#include "transport/members.h"
#include "transport/progress.h"
#include "transport/transport.h"

namespace smdp {

struct Connections {
  Members members;
  std::shared_ptr<Progress> progress;    // of the group
  std::unique_ptr<Transport> transport;  // for data
  std::vector<FileDescriptor> control;   // by rank on rank 0; on other ranks one connection, to rank 0
};

// Connects a group. Rank 0 must call await_departures() afterwards, once it can tell which ranks are gone.
// take_progress returns the progress thread of the group. Throws TimeoutError, which lists the ranks that joined and
// those that did not, ConfigError, or Error. If a rank lacks a resource, all ranks throw a ShortageError that names the
// rank.
Connections bootstrap(Store& store, int rank, int size, const GroupSetup& options,
                      const std::function<std::shared_ptr<Progress>()>& take_progress);

}  // namespace smdp
