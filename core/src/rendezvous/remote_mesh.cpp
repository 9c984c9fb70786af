#include "rendezvous/remote_mesh.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "common/log.h"
#include "smdp/error.h"
#include "transport/handshake.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

enum class Purpose : std::int32_t { kData = 0, kMail = 1, kControl = 2 };

struct Hello {
  std::int32_t rank;
  Purpose purpose;
  std::int32_t index;  // of a data stream
};

// How the control plane notices a cut link: 1 s idle, then 3 probes 1 s apart.
void prepare_control(const FileDescriptor& socket) { set_keepalive(socket, 1, 1, 3); }

// Accepts what higher ranks connect, while this rank connects to the lower ones.
class Acceptor {
 public:
  Acceptor(std::span<const FileDescriptor> listeners, std::string secret, std::string purpose, std::size_t expected,
           Deadline deadline, Connections& out)
      : listeners_(listeners),
        secret_(std::move(secret)),
        purpose_(std::move(purpose)),
        missing_(expected),
        deadline_(deadline),
        out_(out) {
    if (expected > 0) thread_ = std::thread([this] { loop(); });
  }
  ~Acceptor() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  void finish() {
    if (thread_.joinable()) thread_.join();
    if (missing_ == 0) return;
    std::string missing;
    for (std::size_t rank = 0; rank < out_.mail.size(); ++rank) {
      const bool higher = static_cast<int>(rank) > out_.members.rank;
      if (higher && out_.members.host_of(static_cast<int>(rank)) != out_.members.host_index &&
          out_.mail[rank].get() < 0) {
        missing += (missing.empty() ? "" : ", ") + out_.members.who(static_cast<int>(rank));
      }
    }
    throw TimeoutError(out_.members.prefix() + "these ranks did not connect in time: " + missing +
                       ". Can they reach this host? SMDP_SOCKET_IFNAME names the interface to use.");
  }

 private:
  void loop() {
    std::vector<std::thread> greeters;
    while (!stop_.load()) {
      {
        const std::lock_guard lock(mutex_);
        if (missing_ == 0 || std::chrono::steady_clock::now() >= deadline_) break;
      }
      const Deadline soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
      FileDescriptor socket = accept_from(listeners_, std::min(soon, deadline_));
      if (socket.get() < 0) continue;
      // Each in a thread of its own: a silent stranger must not hold up the others.
      try {
        greeters.emplace_back([this, socket = std::move(socket)]() mutable { greet(std::move(socket)); });
      } catch (const std::system_error& error) {
        log(LogLevel::kError, "no thread for a connection: " + std::string(error.what()));
      }
    }
    for (std::thread& greeter : greeters) greeter.join();
  }

  void greet(FileDescriptor socket) {
    const std::string peer = peer_address(socket);
    try {
      const Deadline soon = std::min(deadline_, std::chrono::steady_clock::now() + std::chrono::seconds(10));
      handshake(socket, Role::kServer, secret_, purpose_, soon);
      Hello hello{};
      recv_all(socket.get(), &hello, sizeof hello, soon);
      const std::lock_guard lock(mutex_);
      if (hello.rank <= out_.members.rank || hello.rank >= out_.members.size) throw Error("[smdp] a wrong rank.");
      const auto rank = static_cast<std::size_t>(hello.rank);
      if (hello.index < 0 || static_cast<std::size_t>(hello.index) >= out_.data[rank].size()) {
        throw Error("[smdp] SMDP_STREAMS differs between ranks, or a rank is on another host than it said.");
      }
      FileDescriptor& place = hello.purpose == Purpose::kControl ? out_.control.at(rank)
                              : hello.purpose == Purpose::kMail
                                  ? out_.mail[rank]
                                  : out_.data[rank][static_cast<std::size_t>(hello.index)];
      if (place.get() >= 0) throw Error("[smdp] a rank connected twice.");
      if (hello.purpose == Purpose::kControl) prepare_control(socket);
      place = std::move(socket);
      --missing_;
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      if (refused_.insert(peer).second) {
        log(LogLevel::kWarning, "refused a connection from " + peer + ": " + error.what());
      }
    }
  }

  const std::span<const FileDescriptor> listeners_;
  const std::string secret_;
  const std::string purpose_;
  std::mutex mutex_;
  std::size_t missing_;  // guarded by mutex_, as is out_ while the threads run
  std::set<std::string> refused_;
  std::atomic<bool> stop_{false};
  const Deadline deadline_;
  Connections& out_;
  std::thread thread_;
};

}  // namespace

void connect_remote_ranks(const std::vector<Record>& records, const std::string& secret,
                          std::span<const FileDescriptor> listeners, const GroupOptions& options, Deadline deadline,
                          Connections& connections) {
  const Members& members = connections.members;
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
    connections.data[index].resize(streams_to(index));
    expected += streams_to(index) + 1 + (members.rank == 0 ? 1 : 0);
  }
  Acceptor acceptor(listeners, secret, purpose, expected, deadline, connections);
  for (int rank = 0; rank < members.rank; ++rank) {
    if (!is_remote(rank)) continue;
    const auto index = static_cast<std::size_t>(rank);
    const auto connect = [&](Purpose what, std::size_t stream) {
      const std::size_t rails = rails_to(index);
      const Rail& there = records[index].rails[stream % rails];
      try {
        // One rail leaves the source to the routing table; of several, each has its own.
        const std::string source = rails > 1 ? own_rails[stream % rails].address : "";
        FileDescriptor socket = connect_to(there.address, there.port, deadline, source);
        handshake(socket, Role::kClient, secret, purpose, deadline);
        const Hello hello{members.rank, what, static_cast<std::int32_t>(stream)};
        send_all(socket.get(), &hello, sizeof hello, deadline);
        return socket;
      } catch (const TimeoutError& error) {
        throw TimeoutError(members.prefix() + "cannot reach " + members.who(rank) + " at " + there.address + ", port " +
                           std::to_string(there.port) + ": " + error.what() +
                           " SMDP_SOCKET_IFNAME names the interface to use.");
      }
    };
    for (std::size_t stream = 0; stream < streams_to(index); ++stream) {
      connections.data[index].push_back(connect(Purpose::kData, stream));
    }
    connections.mail[index] = connect(Purpose::kMail, 0);
    if (rank == 0) {
      connections.control[0] = connect(Purpose::kControl, 0);
      prepare_control(connections.control[0]);
    }
  }
  acceptor.finish();
}

}  // namespace smdp
