#include "rendezvous/local_mesh.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "common/hmac.h"
#include "common/shortage.h"
#include "rendezvous/acceptor.h"
#include "smdp/error.h"
#include "transport/handshake.h"
#include "transport/shm/fd_passing.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

constexpr char kPurpose[] = "shared memory";
constexpr std::chrono::seconds kRefusalCheck{1};

// What the leader tells the others about the memory.
struct Offer {
  std::uint64_t nonce = 0;
  std::uint64_t slot_bytes = 0;
};

// Returns the bytes of a slot. The other ranks wait while a chunk is copied, so slots are small. If there are more
// ranks than cores, every wait is a switch between processes, so slots are large. Measured, see docs/benchmarks.md.
std::size_t slot_bytes(const GroupOptions& options, const Members& members) {
  constexpr std::size_t kUsual = std::size_t{256} << 10;
  constexpr std::size_t kOversubscribed = std::size_t{2} << 20;
  const std::size_t usual = members.is_oversubscribed() ? kOversubscribed : kUsual;
  const std::size_t wanted = options.chunk_bytes != 0 ? options.chunk_bytes : usual;
  // A shuffle needs two numbers and at least 64 bytes for each rank.
  const std::size_t least = std::max<std::size_t>(16384, 80 * members.local_ranks().size() + 64);
  return (std::max(wanted / 4096 * 4096, least) + 4095) / 4096 * 4096;
}

std::string joined_key(int rank) { return "local/" + std::to_string(rank); }
std::string verdict_key(int leader) { return "mapped/" + std::to_string(leader); }

// Returns the users that the ranks of this host run as. Empty if users do not identify unauthenticated peers: in its
// own user namespace a rank has a different user number, or none, from outside.
std::set<std::string> users_of(const std::vector<Record>& records, const std::vector<int>& ranks, int leader) {
  std::set<std::string> users;
  for (const int rank : ranks) {
    const Record& record = records[static_cast<std::size_t>(rank)];
    if (record.user_space != records[static_cast<std::size_t>(leader)].user_space) return {};
    users.insert(record.user);
  }
  return users;
}

// Returns the doorbells of `ranks`, of which this rank is ranks[own].
std::vector<Doorbell> doorbells_of(const std::vector<Record>& records, const std::vector<int>& ranks,
                                   std::vector<FileDescriptor> received, const std::shared_ptr<Progress>& progress,
                                   std::size_t own) {
  std::vector<Doorbell> doorbells;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Record& record = records[static_cast<std::size_t>(ranks[i])];
    doorbells.push_back(i == own ? Doorbell(progress, &progress->doorbell())
                                 : keep_doorbell(record.doorbell, std::move(received[i])));
  }
  return doorbells;
}

// The leader's connections to the others, in the order of `ranks`; its own entries are empty.
struct Callers {
  std::vector<FileDescriptor> sockets;
  std::vector<FileDescriptor> doorbells;
};

// Accepts the other ranks; each sends its doorbell and is stored at its place in `callers`.
Acceptor::Setup setup_for(const std::set<std::string>& users, const std::string& secret, const FileDescriptor& listener,
                          Callers& callers) {
  Acceptor::Setup setup;
  setup.listeners = {&listener, 1};
  setup.name = [](const FileDescriptor& socket) {
    const LocalPeer peer = local_peer(socket);
    return "process " + std::to_string(peer.process) + " of user " + peer.user;
  };
  setup.greet = [&, users](FileDescriptor& socket, Deadline soon, const std::function<void()>& proved) {
    if (!users.empty() && users.count(local_peer(socket).user) == 0) {
      throw Error("[smdp] no rank of this host runs as that user, so the connection was refused.");
    }
    handshake(socket, Role::kServer, secret, kPurpose, soon, {}, proved);
    std::int32_t index = -1;
    recv_all(socket.get(), &index, sizeof index, soon);
    if (index <= 0 || index >= static_cast<std::int32_t>(callers.sockets.size())) {
      throw Error("[smdp] the peer announced a rank that does not exist.");
    }
    auto doorbells = std::make_shared<std::vector<FileDescriptor>>(receive_descriptors(socket, 1, soon));
    return [&socket, &callers, index, doorbells] {
      const auto place = static_cast<std::size_t>(index);
      if (callers.sockets[place].get() >= 0) throw Error("[smdp] the same rank connected twice.");
      callers.sockets[place] = std::move(socket);
      callers.doorbells[place] = std::move(doorbells->front());
    };
  };
  return setup;
}

// Returns whether a rank has announced that it cannot join, and all others have joined or announced the same.
bool have_given_up(Store& store, const std::vector<int>& ranks, Acceptor& acceptor, const Callers& callers) {
  std::vector<std::size_t> missing;
  acceptor.run_apart([&] {
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      if (callers.sockets[i].get() < 0) missing.push_back(i);
    }
  });
  return !missing.empty() &&
         std::all_of(missing.begin(), missing.end(), [&](std::size_t i) { return store.check(joined_key(ranks[i])); });
}

// Makes the memory, and sends it and all doorbells to every other rank once all have joined. Returns the connections in
// the order of `ranks`; none if not all can join.
std::vector<FileDescriptor> lead(Store& store, const std::vector<Record>& records, const std::vector<int>& ranks,
                                 const std::string& secret, const FileDescriptor& listener, const GroupSetup& options,
                                 Deadline deadline, Wires& out) {
  Offer offer;
  std::memcpy(&offer.nonce, random_bytes(sizeof offer.nonce).data(), sizeof offer.nonce);
  offer.slot_bytes = slot_bytes(options, out.members);
  out.segment = std::make_shared<Segment>(ranks.size(), offer.slot_bytes, offer.nonce);
  Callers callers;
  callers.sockets.resize(ranks.size());
  callers.doorbells.resize(ranks.size());
  Acceptor acceptor(setup_for(users_of(records, ranks, ranks.front()), secret, listener, callers), ranks.size() - 1,
                    deadline);
  auto next_look = std::chrono::steady_clock::now() + kRefusalCheck;
  while (!acceptor.is_over_within(kInterruptionCheck)) {
    if (options.interrupted && options.interrupted())
      throw ClosedError("[smdp] the wait for other ranks was interrupted.");
    if (std::chrono::steady_clock::now() < next_look) continue;
    next_look += kRefusalCheck;
    // A rank that fails announces it in the store and does not join; others may still be joining.
    if (have_given_up(store, ranks, acceptor, callers)) return {};
  }
  if (!acceptor.have_all_come()) throw TimeoutError("[smdp] a rank of this host did not connect in time.");
  out.doorbells = doorbells_of(records, ranks, std::move(callers.doorbells), out.progress, 0);
  std::vector<int> passed{out.segment->descriptor()};
  for (const Doorbell& doorbell : out.doorbells) passed.push_back(doorbell->get());
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    const FileDescriptor& socket = callers.sockets[i];
    try {
      send_all(socket.get(), &offer, sizeof offer, deadline, options.interrupted);
      send_descriptors(socket, passed);
    } catch (const ConnectionEnded&) {  // that rank has failed and announces it in the store
    }
  }
  out.segment->close_descriptor();
  return std::move(callers.sockets);
}

FileDescriptor follow(const std::vector<Record>& records, std::size_t index, const std::vector<int>& ranks,
                      const std::string& secret, Deadline deadline, const Interrupted& interrupted, Wires& out) {
  FileDescriptor socket = connect_local(records[static_cast<std::size_t>(ranks.front())].local_name);
  if (socket.get() < 0) throw Error("[smdp] no local socket");
  handshake(socket, Role::kClient, secret, kPurpose, deadline, interrupted);
  const auto number = static_cast<std::int32_t>(index);
  send_all(socket.get(), &number, sizeof number, deadline, interrupted);
  send_descriptors(socket, {out.progress->doorbell().get()});
  Offer offer;
  recv_all(socket.get(), &offer, sizeof offer, deadline, interrupted);
  std::vector<FileDescriptor> received = receive_descriptors(socket, 1 + ranks.size(), deadline);
  out.segment = std::make_shared<Segment>(std::move(received.front()), ranks.size(), offer.slot_bytes, offer.nonce);
  received.erase(received.begin());
  out.doorbells = doorbells_of(records, ranks, std::move(received), out.progress, index);
  return socket;
}

}  // namespace

bool connect_local_ranks(Store& store, const std::vector<Record>& records, const std::vector<int>& ranks, int rank,
                         const std::string& secret, const FileDescriptor& listener, const GroupSetup& options,
                         Deadline deadline, Wires& wires) {
  const auto left = [&] {
    return std::max(std::chrono::milliseconds(1),
                    std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
  };
  const int leader = ranks.front();
  if (rank == leader) {
    std::vector<FileDescriptor> sockets = lead(store, records, ranks, secret, listener, options, deadline, wires);
    bool all = true;
    for (const int other : ranks) {
      if (other != leader) all = store.get(joined_key(other), left()) == "1" && all;
    }
    // Not when a rank is alone after the memory could not be shared: others may still read the first verdict.
    if (ranks.size() > 1 || wires.members.size == 1) store.set(verdict_key(leader), all ? "1" : "0");
    if (all && leader == 0) {
      for (std::size_t i = 1; i < ranks.size(); ++i) {
        wires.control[static_cast<std::size_t>(ranks[i])] = std::move(sockets[i]);
      }
    }
    return all;
  }
  const auto index = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  FileDescriptor socket;
  bool mapped = true;
  try {
    socket = follow(records, index, ranks, secret, deadline, options.interrupted, wires);
  } catch (const TimeoutError&) {
    throw;
  } catch (const ClosedError&) {
    throw;
  } catch (const ShortageError& error) {
    if (!error.is_denied()) throw;
    mapped = false;  // no permission: TCP is used instead
  } catch (const Error&) {
    mapped = false;  // a different network namespace after all: TCP is used instead
  }
  // Rank 0 has its end by now. If this rank fails from here on, it reports it there.
  if (leader == 0) wires.control[0] = std::move(socket);
  store.set(joined_key(rank), mapped ? "1" : "0");
  const bool all = store.get(verdict_key(leader), left()) == "1";
  if (all && !mapped) {
    throw ConfigError("[smdp] the rendezvous store still holds the keys of an earlier group '" + options.name +
                      "'. Give every group its own name, or use a new store.");
  }
  if (!all && leader == 0) wires.control[0].reset();
  return all;
}

}  // namespace smdp
