// From a store to a connected group: who is there, who shares this host, and the connections between all.
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
  std::shared_ptr<Progress> progress;    // the group's
  std::unique_ptr<Transport> transport;  // for data
  std::vector<FileDescriptor> control;   // on rank 0 by rank, elsewhere one, to rank 0
};

// Rank 0 has await_departures() to call, once it can tell who is gone. take_progress gives the progress thread of the
// group. Throws TimeoutError, which lists who came and who did not, ConfigError, or Error. What a rank lacks is a
// ShortageError on all ranks, which names that rank.
Connections bootstrap(Store& store, int rank, int size, const GroupSetup& options,
                      const std::function<std::shared_ptr<Progress>()>& take_progress);

}  // namespace smdp
