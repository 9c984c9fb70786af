// Who came: one record per rank, collected by rank 0 through the store and handed to all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "smdp/group.h"
#include "smdp/store.h"

namespace smdp {

struct Record {
  std::string host_name;    // for messages
  std::string host_key;     // equal on ranks that may share memory: boot id and network namespace, or SMDP_HOST_ID
  std::string local_name;   // of this rank's abstract Unix socket
  std::string master_seen;  // numeric address by which this rank reaches the master; empty on rank 0
  std::string address;      // where this rank listens
  std::string cores;        // affinity mask, see common/cores.h
  std::uint16_t port = 0;
};

// This rank's own record, but for address and port.
Record describe_self(int rank, const GroupOptions& options, const std::string& nonce);

// The address on which a rank other than 0 listens: its end of the route to the master.
std::string own_address(const GroupOptions& options);

// Publishes `own` and returns all records by rank. On rank 0 `complete` is called first, with the records of the
// others, to fill in where it listens: the others know best how it is reached. Throws TimeoutError, which lists who
// came and who did not.
std::vector<Record> exchange_records(
    Store& store, int rank, int size, Record own, const GroupOptions& options,
    const std::function<void(Record& own, const std::vector<Record>& others)>& complete);

// Splits the ranks by host_key: hosts in the order of their lowest rank.
std::vector<std::vector<int>> group_by_host(const std::vector<Record>& records);

}  // namespace smdp
