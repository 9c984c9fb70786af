#include "rendezvous/local_mesh.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "common/failure.h"
#include "common/hmac.h"
#include "rendezvous/reception.h"
#include "smdp/error.h"
#include "transport/handshake.h"
#include "transport/shm/fd_passing.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

constexpr char kPurpose[] = "shared memory";
constexpr std::chrono::seconds kFailureCheck{1};

// What the leader tells the others about the memory.
struct Offer {
  std::uint64_t nonce = 0;
  std::uint64_t slot_bytes = 0;
};

// Bytes of a slot: as long as a chunk takes to copy, others wait. Where ranks outnumber cores, every wait is a switch
// between processes, and long chunks make few of them. Measured, see docs/benchmarks.md.
std::size_t slot_bytes(const GroupOptions& options, const Members& members) {
  constexpr std::size_t kUsual = std::size_t{256} << 10;
  constexpr std::size_t kOversubscribed = std::size_t{2} << 20;
  const std::size_t usual = members.is_oversubscribed() ? kOversubscribed : kUsual;
  const std::size_t wanted = options.chunk_bytes != 0 ? options.chunk_bytes : usual;
  // A shuffle has two numbers and at least 64 bytes for each rank.
  const std::size_t least = std::max<std::size_t>(16384, 80 * members.local_ranks().size() + 64);
  return (std::max(wanted / 4096 * 4096, least) + 4095) / 4096 * 4096;
}

std::string joined_key(int rank) { return "local/" + std::to_string(rank); }
std::string verdict_key(int leader) { return "mapped/" + std::to_string(leader); }

// The users as whom ranks of this host run. Empty if that does not tell strangers: in a namespace of users of its own a
// rank goes by a number there, and by another one or none here.
std::set<std::string> users_of(const std::vector<Record>& records, const std::vector<int>& ranks, int leader) {
  std::set<std::string> users;
  for (const int rank : ranks) {
    const Record& record = records[static_cast<std::size_t>(rank)];
    if (record.user_space != records[static_cast<std::size_t>(leader)].user_space) return {};
    users.insert(record.user);
  }
  return users;
}

// Calls of the other ranks, of which each gets the memory and goes to its place in `sockets`, which are in the order of
// `ranks`.
Reception::Desk desk_for(const std::set<std::string>& users, const std::string& secret, const FileDescriptor& listener,
                         const Offer& offer, const std::vector<int>& passed, std::vector<FileDescriptor>& sockets) {
  Reception::Desk desk;
  desk.listeners = {&listener, 1};
  desk.name = [](const FileDescriptor& socket) {
    const LocalPeer peer = local_peer(socket);
    return "process " + std::to_string(peer.process) + " of user " + peer.user;
  };
  desk.greet = [&, users, passed](FileDescriptor& socket, Deadline soon, const std::function<void()>& proved) {
    if (!users.empty() && users.count(local_peer(socket).user) == 0) {
      throw Error("[smdp] no rank of this host runs as that user.");
    }
    handshake(socket, Role::kServer, secret, kPurpose, soon, {}, proved);
    std::int32_t index = -1;
    recv_all(socket.get(), &index, sizeof index, soon);
    if (index <= 0 || index >= static_cast<std::int32_t>(sockets.size())) throw Error("[smdp] a wrong rank.");
    send_all(socket.get(), &offer, sizeof offer, soon);
    send_descriptors(socket, passed);
    return [&socket, &sockets, index] {
      FileDescriptor& place = sockets[static_cast<std::size_t>(index)];
      if (place.get() >= 0) throw Error("[smdp] a rank connected twice.");
      place = std::move(socket);
    };
  };
  return desk;
}

// Whether all ranks but the leader have said how it went, and one that it failed.
bool have_given_up(Store& store, const std::vector<int>& ranks) {
  bool has_failed = false;
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (!store.check(joined_key(ranks[i]))) return false;
    has_failed = store.get(joined_key(ranks[i]), std::chrono::seconds(1)) == "0" || has_failed;
  }
  return has_failed;
}

// Makes the memory and hands it to every other rank; returns the connections, in the order of `ranks` without itself.
void lead(Store& store, const std::vector<Record>& records, const std::vector<int>& ranks, const std::string& secret,
          const FileDescriptor& listener, const GroupOptions& options, Deadline deadline, Connections& out,
          std::vector<FileDescriptor>& sockets) {
  Offer offer;
  std::memcpy(&offer.nonce, random_bytes(sizeof offer.nonce).data(), sizeof offer.nonce);
  offer.slot_bytes = slot_bytes(options, out.members);
  out.segment = std::make_shared<Segment>(ranks.size(), offer.slot_bytes, offer.nonce);
  std::vector<int> passed{out.segment->descriptor()};
  out.eventfds.clear();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    out.eventfds.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (out.eventfds.back().get() < 0) throw Error("[smdp] eventfd: " + std::string(std::strerror(errno)) + ".");
    passed.push_back(out.eventfds.back().get());
  }
  sockets.resize(ranks.size());
  Reception reception(desk_for(users_of(records, ranks, ranks.front()), secret, listener, offer, passed, sockets),
                      ranks.size() - 1, deadline);
  auto next_look = std::chrono::steady_clock::now() + kFailureCheck;
  while (!reception.is_over_within(kInterruptionCheck)) {
    if (options.interrupted && options.interrupted()) throw ClosedError("[smdp] interrupted.");
    if (std::chrono::steady_clock::now() < next_look) continue;
    next_look += kFailureCheck;
    // Whoever fails says so in the store and comes no more; others may still be on their way.
    if (have_given_up(store, ranks)) return;
  }
  if (!reception.have_all_come()) throw TimeoutError("[smdp] a rank of this host did not connect in time.");
  out.segment->close_descriptor();
}

FileDescriptor follow(const Record& leader, std::size_t index, const std::vector<int>& ranks, const std::string& secret,
                      Deadline deadline, const Interrupted& interrupted, Connections& out) {
  FileDescriptor socket = connect_local(leader.local_name);
  if (socket.get() < 0) throw Error("[smdp] no local socket");
  handshake(socket, Role::kClient, secret, kPurpose, deadline, interrupted);
  const auto number = static_cast<std::int32_t>(index);
  send_all(socket.get(), &number, sizeof number, deadline, interrupted);
  Offer offer;
  recv_all(socket.get(), &offer, sizeof offer, deadline, interrupted);
  std::vector<FileDescriptor> received = receive_descriptors(socket, 1 + ranks.size(), deadline);
  out.segment = std::make_shared<Segment>(std::move(received.front()), ranks.size(), offer.slot_bytes, offer.nonce);
  out.eventfds.clear();
  for (std::size_t i = 1; i < received.size(); ++i) out.eventfds.push_back(std::move(received[i]));
  return socket;
}

}  // namespace

bool connect_local_ranks(Store& store, const std::vector<Record>& records, const std::vector<int>& ranks, int rank,
                         const std::string& secret, const FileDescriptor& listener, const GroupOptions& options,
                         Deadline deadline, Connections& connections) {
  const auto left = [&] {
    return std::max(std::chrono::milliseconds(1),
                    std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
  };
  const int leader = ranks.front();
  std::vector<FileDescriptor> sockets;
  if (rank == leader) {
    try {
      lead(store, records, ranks, secret, listener, options, deadline, connections, sockets);
    } catch (const Error& error) {  // out of memory or descriptors
      tell_failure(store, verdict_key(leader), error);
      throw;
    }
    bool all = true;
    for (const int other : ranks) {
      if (other != leader) all = store.get(joined_key(other), left()) == "1" && all;
    }
    // Not of a rank by itself, after the memory of all could not be shared: others may still read what came of that.
    if (ranks.size() > 1 || connections.members.size == 1) store.set(verdict_key(leader), all ? "1" : "0");
    if (all && leader == 0) {
      for (std::size_t i = 1; i < ranks.size(); ++i) {
        connections.control[static_cast<std::size_t>(ranks[i])] = std::move(sockets[i]);
      }
    }
    return all;
  }
  const auto index = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  FileDescriptor socket;
  bool mapped = true;
  try {
    socket = follow(records[static_cast<std::size_t>(leader)], index, ranks, secret, deadline, options.interrupted,
                    connections);
  } catch (const TimeoutError&) {
    throw;
  } catch (const ClosedError&) {
    throw;
  } catch (const Error&) {
    mapped = false;  // another network namespace after all, or no permission: TCP does it
  }
  store.set(joined_key(rank), mapped ? "1" : "0");
  const bool all = is_shared(store.get(verdict_key(leader), left()), connections.members, leader);
  if (all && !mapped) {
    throw ConfigError("[smdp] the rendezvous store holds keys of an earlier group '" + options.name +
                      "'. Every group needs a name of its own, or a fresh store.");
  }
  if (all && leader == 0) connections.control[0] = std::move(socket);
  return all;
}

void tell_failure(Store& store, const std::string& key, const Error& error) {
  if (error.kind() != ErrorKind::kInternal) return;
  try {
    store.set(key, error.what());
  } catch (const Error&) {  // then they find out by themselves
  }
}

bool is_shared(const std::string& verdict, const Members& members, int leader) {
  if (verdict == "1" || verdict == "0") return verdict == "1";
  throw Error(members.prefix() + members.who(leader) +
              " could not connect the ranks of its host: " + without_tag(verdict));
}

}  // namespace smdp
