#include "rendezvous/remote_mesh.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "rendezvous/acceptor.h"
#include "smdp/error.h"
#include "transport/handshake.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

constexpr std::chrono::milliseconds kRetryPause{100};

enum class Purpose : std::int32_t { kData = 0, kMail = 1, kControl = 2 };

struct Hello {
  std::int32_t rank;
  Purpose purpose;
  std::int32_t index;  // of a data stream
};

// Detects a cut link on control connections: 1 s idle, then 3 probes 1 s apart.
void prepare_control(const FileDescriptor& socket) { set_keepalive(socket, 1, 1, 3); }

// Waits for the connections of higher ranks.
void finish(Acceptor& acceptor, const Interrupted& interrupted, const Wires& wires) {
  while (!acceptor.is_over_within(kInterruptionCheck)) {
    if (interrupted && interrupted()) throw ClosedError("[smdp] the wait for other ranks was interrupted.");
  }
  if (acceptor.have_all_come()) return;
  const Members& members = wires.members;
  std::string missing;
  for (int rank = members.rank + 1; rank < members.size; ++rank) {
    if (members.host_of(rank) == members.host_index || wires.mail[static_cast<std::size_t>(rank)].get() >= 0) {
      continue;
    }
    missing += (missing.empty() ? "" : ", ") + members.who(rank);
  }
  throw TimeoutError(members.prefix() + "these ranks did not connect in time: " + missing +
                     ". Can they reach this host? SMDP_SOCKET_IFNAME selects the network interface to use.");
}

// Moves a connection of a higher rank to its place.
void place(const Hello& hello, FileDescriptor& socket, Wires& out) {
  if (hello.rank <= out.members.rank || hello.rank >= out.members.size)
    throw Error("[smdp] the peer announced a rank that does not exist.");
  const auto rank = static_cast<std::size_t>(hello.rank);
  if (hello.index < 0 || static_cast<std::size_t>(hello.index) >= out.data[rank].size()) {
    throw Error("[smdp] SMDP_STREAMS differs between ranks, or a rank is on a different host than it announced.");
  }
  FileDescriptor& place = hello.purpose == Purpose::kControl ? out.control.at(rank)
                          : hello.purpose == Purpose::kMail  ? out.mail[rank]
                                                             : out.data[rank][static_cast<std::size_t>(hello.index)];
  if (place.get() >= 0) throw Error("[smdp] the same rank connected twice.");
  place = std::move(socket);
  if (hello.purpose == Purpose::kControl)
    prepare_control(place);  // if this fails, the connection reports it to the
                             // peer
}

}  // namespace

void connect_remote_ranks(const std::vector<Record>& records, const std::string& secret,
                          std::span<const FileDescriptor> listeners, const GroupSetup& options, Deadline deadline,
                          Wires& wires) {
  const Members& members = wires.members;
  const std::string purpose = "group " + options.name;
  const auto is_remote = [&](int rank) { return members.host_of(rank) != members.host_index; };
  const std::vector<Rail>& own_rails = records[static_cast<std::size_t>(members.rank)].rails;
  const auto rails_to = [&](std::size_t rank) { return std::min(own_rails.size(), records[rank].rails.size()); };
  const auto streams_to = [&](std::size_t rank) {
    return std::max(static_cast<std::size_t>(options.streams), rails_to(rank));
  };
  std::size_t expected = 0;
  for (int rank = 0; rank < members.size; ++rank) {
    if (!is_remote(rank) || rank < members.rank) continue;
    const auto index = static_cast<std::size_t>(rank);
    wires.data[index].resize(streams_to(index));
    expected += streams_to(index) + 1 + (members.rank == 0 ? 1 : 0);
  }
  Acceptor::Setup setup;
  setup.listeners = listeners;
  setup.name = peer_address;
  setup.greet = [&](FileDescriptor& socket, Deadline soon, const std::function<void()>& proved) {
    handshake(socket, Role::kServer, secret, purpose, soon, {}, proved);
    Hello hello{};
    std::optional<ShortageError> lacking;
    try {
      recv_all(socket.get(), &hello, sizeof hello, soon);
    } catch (const ShortageError& error) {
      // The peer may have left the meeting, and learns of this only through the connection.
      lacking = error;
      recv_all(socket.get(), &hello, sizeof hello, soon);
    }
    return [hello, lacking, &socket, &wires] {
      place(hello, socket, wires);
      if (lacking) throw ShortageError(*lacking);
    };
  };
  Acceptor acceptor(std::move(setup), expected, deadline);
  for (int rank = 0; rank < members.rank; ++rank) {
    if (!is_remote(rank)) continue;
    const auto index = static_cast<std::size_t>(rank);
    const auto connect = [&](Purpose what, std::size_t stream) {
      const std::size_t rails = rails_to(index);
      const Rail& there = records[index].rails[stream % rails];
      try {
        // With one rail the routing table chooses the source; with several, each has its own source.
        const std::string source = rails > 1 ? own_rails[stream % rails].address : "";
        for (;;) {
          FileDescriptor socket = connect_to(there.address, there.port, deadline, source, options.interrupted);
          try {
            handshake(socket, Role::kClient, secret, purpose, deadline, options.interrupted);
          } catch (const ConnectionEnded&) {
            // A rank with many unauthenticated peers makes room, and may mistake this one for one of them.
            if (std::chrono::steady_clock::now() + kRetryPause >= deadline) throw;
            std::this_thread::sleep_for(kRetryPause);
            continue;
          }
          const Hello hello{members.rank, what, static_cast<std::int32_t>(stream)};
          send_all(socket.get(), &hello, sizeof hello, deadline, options.interrupted);
          return socket;
        }
      } catch (const TimeoutError& error) {
        throw TimeoutError(members.prefix() + "cannot reach " + members.who(rank) + " at " + there.address + ", port " +
                           std::to_string(there.port) + ": " + error.what() +
                           " SMDP_SOCKET_IFNAME selects the network interface to use.");
      }
    };
    for (std::size_t stream = 0; stream < streams_to(index); ++stream) {
      wires.data[index].push_back(connect(Purpose::kData, stream));
    }
    wires.mail[index] = connect(Purpose::kMail, 0);
    if (rank == 0) {
      wires.control[0] = connect(Purpose::kControl, 0);
      prepare_control(wires.control[0]);
    }
  }
  finish(acceptor, options.interrupted, wires);
}

}  // namespace smdp
