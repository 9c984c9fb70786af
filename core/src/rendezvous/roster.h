// The ranks that joined: one record per rank, collected by rank 0 through the store and distributed to all.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "smdp/internal/group_setup.h"
#include "smdp/store.h"
#include "transport/members.h"

namespace smdp {

// Where a rank listens. Several rails are several network cards used at once.
struct Rail {
  std::string address;  // numeric
  std::uint16_t port = 0;
};

// Variables that determine how ranks communicate.
inline constexpr std::array<const char*, 4> kShared{"SMDP_SECRET", "SMDP_ALGORITHM", "SMDP_DETERMINISTIC",
                                                    "SMDP_STREAMS"};

struct Record {
  std::string host_name;    // used in messages
  std::string host_key;     // equal on ranks that may share memory: boot id and network namespace, or SMDP_HOST_ID
  std::string local_name;   // name of this rank's abstract Unix socket
  std::string master_seen;  // numeric address by which this rank reaches the master; empty on rank 0
  std::string cores;        // affinity mask, see common/cores.h
  std::string user;         // number of the user that it runs as
  std::string user_space;   // the user namespace of that number
  std::string doorbell;     // name of the doorbell that wakes it, see Progress::doorbell_name()
  int world_rank = -1;      // -1 if it equals the rank
  std::array<std::string, kShared.size()> shared;  // values of the variables above; of the secret only a fingerprint
  std::vector<Rail> rails;                         // where this rank listens
};

// Returns this rank's own record, except for the rails. doorbell: see Record.
Record describe_self(int rank, const GroupOptions& options, const std::string& nonce, const std::string& doorbell);
// Returns "[smdp] rank 3 of 8 (host b)" for this rank, like Members::tag(), before the others are known.
std::string tag_of_self(int rank, int size, const GroupOptions& options);

// Returns the addresses on which a rank listens: those that SMDP_SOCKET_IFNAME selects, or its end of the route to the
// master.
std::vector<std::string> own_addresses(const GroupOptions& options);
// Returns the addresses of rank 0. It listens where the others reach it, which they know better than rank 0, because a
// host's own name often resolves to 127.0.1.1.
std::vector<std::string> addresses_of_master(const Record& own, const std::vector<Record>& others,
                                             const GroupOptions& options);

// Publishes `own` and returns all records by rank. On rank 0, `complete` is called first with the records of the
// others, to fill in where rank 0 listens. Throws TimeoutError, which lists the ranks that joined and those that did
// not.
std::vector<Record> exchange_records(
    Store& store, int rank, int size, Record own, const GroupSetup& options,
    const std::function<void(Record& own, const std::vector<Record>& others)>& complete);

// Fills host_names and world_ranks, which messages need, with what the ranks know so far.
void introduce(const std::vector<Record>& records, Members& members);

// Throws ConfigError on all ranks if one of kShared differs between ranks. Rank 0 throws last. interrupted: see
// await_departures().
void check_shared(Store& store, const std::vector<Record>& records, const Members& members,
                  const std::function<bool()>& interrupted);

// A rank on rank 0's host may know the master only by a loopback address, which other hosts cannot reach. Returns true
// for such a rank once the roster shows that rank 0 has a better address, on which the rank must then listen.
bool must_move(const std::vector<Record>& records, int rank);

// Convert a list of rails to text and back.
std::string encode_rails(const std::vector<Rail>& rails);
std::vector<Rail> decode_rails(const std::string& text);

// Splits the ranks by host_key. Hosts are in the order of their lowest rank.
std::vector<std::vector<int>> group_by_host(const std::vector<Record>& records);

}  // namespace smdp
