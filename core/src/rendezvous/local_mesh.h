// The ranks of one host find each other: one makes the shared memory and the doorbells, the others receive them.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/bootstrap.h"
#include "rendezvous/roster.h"
#include "smdp/error.h"

namespace smdp {

// listener: this rank's, named records[rank].local_name. Fills segment and eventfds for `ranks` (ascending, this rank
// among them), and on rank 0's host `control`. Returns false if shared memory could not be established with one of
// them; all of them then return false.
bool connect_local_ranks(Store& store, const std::vector<Record>& records, const std::vector<int>& ranks, int rank,
                         const std::string& secret, const FileDescriptor& listener, const GroupOptions& options,
                         std::chrono::steady_clock::time_point deadline, Connections& connections);

// Why connect_local_ranks() has failed on the rank that leads its host, for who waits at a key. Not what the others
// find out for themselves, which are timeouts, nor Ctrl-C. Never throws.
void tell_failure(Store& store, const std::string& key, const Error& error);

// What a rank that leads its host says in the store of connect_local_ranks(): "1" or "0" for its result, or why it
// failed, which is thrown here as Error.
bool is_shared(const std::string& verdict, const Members& members, int leader);

}  // namespace smdp
