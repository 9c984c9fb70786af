// Connects the ranks of one host: one rank makes the shared memory and passes it on with the doorbells of all.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/roster.h"
#include "rendezvous/wires.h"
#include "smdp/error.h"
#include "smdp/internal/group_setup.h"

namespace smdp {

// listener: this rank's, named records[rank].local_name. Fills segment and doorbells for `ranks` (ascending, including
// this rank) and, on rank 0's host, `control`. Returns false, on all of them, if one of them cannot share memory.
bool connect_local_ranks(Store& store, const std::vector<Record>& records, const std::vector<int>& ranks, int rank,
                         const std::string& secret, const FileDescriptor& listener, const GroupSetup& options,
                         std::chrono::steady_clock::time_point deadline, Wires& wires);

}  // namespace smdp
