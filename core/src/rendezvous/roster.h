// Who came: one record per rank, collected by rank 0 through the store and handed to all.
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

// Variables that decide how ranks talk to each other.
inline constexpr std::array<const char*, 4> kShared{"SMDP_SECRET", "SMDP_ALGORITHM", "SMDP_DETERMINISTIC",
                                                    "SMDP_STREAMS"};

struct Record {
  std::string host_name;    // for messages
  std::string host_key;     // equal on ranks that may share memory: boot id and network namespace, or SMDP_HOST_ID
  std::string local_name;   // of this rank's abstract Unix socket
  std::string master_seen;  // numeric address by which this rank reaches the master; empty on rank 0
  std::string cores;        // affinity mask, see common/cores.h
  std::string user;         // number of the user it runs as
  std::string user_space;   // and the namespace in which it is called so
  std::string doorbell;     // name of that by which it is woken, see Progress::doorbell_name()
  int world_rank = -1;      // where it is not the rank itself
  std::array<std::string, kShared.size()> shared;  // values of the variables above, of the secret a fingerprint
  std::vector<Rail> rails;                         // where this rank listens
};

// This rank's own record, but for the rails. doorbell: see Record.
Record describe_self(int rank, const GroupOptions& options, const std::string& nonce, const std::string& doorbell);
// "[smdp] rank 3 of 8 (host b)", as Members::tag() says it, of this rank before the others are known.
std::string tag_of_self(int rank, int size, const GroupOptions& options);

// The addresses on which a rank listens: what SMDP_SOCKET_IFNAME admits, else its end of the route to the master.
std::vector<std::string> own_addresses(const GroupOptions& options);
// Those of rank 0: it listens where the others reach it, which they know better than it does: a host's own name often
// means 127.0.1.1 to itself.
std::vector<std::string> addresses_of_master(const Record& own, const std::vector<Record>& others,
                                             const GroupOptions& options);

// Publishes `own` and returns all records by rank. On rank 0 `complete` is called first, with the records of the
// others, to fill in where it listens: the others know best how it is reached. Throws TimeoutError, which lists who
// came and who did not.
std::vector<Record> exchange_records(
    Store& store, int rank, int size, Record own, const GroupSetup& options,
    const std::function<void(Record& own, const std::vector<Record>& others)>& complete);

// What the ranks know of each other so far, for messages. Fills host_names and world_ranks.
void introduce(const std::vector<Record>& records, Members& members);

// Throws ConfigError, on all ranks alike, if one of kShared differs between ranks. Rank 0 does so last. interrupted:
// see await_departures().
void check_shared(Store& store, const std::vector<Record>& records, const Members& members,
                  const std::function<bool()>& interrupted);

// A rank beside rank 0 may know the master only by a loopback address, where other hosts cannot reach it. True for such
// a rank once the roster shows that rank 0 has a better address: that is the one to listen on.
bool must_move(const std::vector<Record>& records, int rank);

// A list of rails as text, and back.
std::string encode_rails(const std::vector<Rail>& rails);
std::vector<Rail> decode_rails(const std::string& text);

// Splits the ranks by host_key: hosts in the order of their lowest rank.
std::vector<std::vector<int>> group_by_host(const std::vector<Record>& records);

}  // namespace smdp
