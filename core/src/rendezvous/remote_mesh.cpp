#include "rendezvous/remote_mesh.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <future>
#include <list>
#include <mutex>
#include <set>
#include <thread>

#include "common/log.h"
#include "rendezvous/strangers.h"
#include "smdp/error.h"
#include "transport/handshake.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

constexpr std::chrono::milliseconds kRetryPause{100};
constexpr std::chrono::milliseconds kInterruptionCheck{200};

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
  void finish(const Interrupted& interrupted) {
    if (thread_.joinable()) {
      const std::future<void> over = over_.get_future();
      while (interrupted && over.wait_for(kInterruptionCheck) != std::future_status::ready) {
        if (interrupted()) throw ClosedError("[smdp] interrupted.");
      }
      thread_.join();
    }
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
    while (is_wanted()) {
      const Deadline soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
      FileDescriptor socket;
      if (has_room()) socket = accept_from(listeners_, std::min(soon, deadline_));
      if (socket.get() < 0) {
        // No descriptor left: the connection stays in the queue and poll() returns at once, so wait here.
        std::this_thread::sleep_until(std::min(soon, std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
        continue;
      }
      // Each in a thread of its own: a silent stranger must not hold up the others.
      const std::lock_guard lock(mutex_);
      Session& session = sessions_.emplace_back();
      session.socket = std::move(socket);
      session.address = peer_address(session.socket);
      try {
        session.thread = std::thread([this, &session] { greet(session); });
      } catch (const std::system_error& error) {
        log(LogLevel::kError, "no thread for a connection: " + std::string(error.what()));
        sessions_.pop_back();
      }
    }
    {
      // Who is not known by now is nobody that is waited for.
      const std::lock_guard lock(mutex_);
      for (const Session& session : sessions_) {
        if (session.socket.get() >= 0) ::shutdown(session.socket.get(), SHUT_RDWR);
      }
    }
    for (Session& session : sessions_) session.thread.join();
    over_.set_value();
  }

  bool is_wanted() {
    const std::lock_guard lock(mutex_);
    return !stop_.load() && missing_ > 0 && std::chrono::steady_clock::now() < deadline_;
  }

  bool has_room() {
    const std::lock_guard lock(mutex_);
    forget_ended(sessions_);
    return has_room_for_strangers(sessions_, most_strangers_);
  }

  void greet(Session& session) {
    FileDescriptor& socket = session.socket;
    try {
      const Deadline soon = std::min(deadline_, std::chrono::steady_clock::now() + std::chrono::seconds(10));
      handshake(socket, Role::kServer, secret_, purpose_, soon, {}, [&] {
        const std::lock_guard lock(mutex_);
        session.is_known = true;
      });
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
      if (missing_ > 0 && !stop_.load() && refused_.insert(session.address).second) {
        log(LogLevel::kWarning, "refused a connection from " + session.address + ": " + error.what());
      }
      socket.reset();
    }
    session.ended.store(true);
  }

  const std::span<const FileDescriptor> listeners_;
  const std::string secret_;
  const std::string purpose_;
  std::mutex mutex_;
  std::size_t missing_;            // guarded by mutex_, as is out_ while the threads run
  std::list<Session> sessions_;    // guarded by mutex_
  std::set<std::string> refused_;  // guarded by mutex_
  const std::size_t most_strangers_ = most_strangers();
  std::atomic<bool> stop_{false};
  std::promise<void> over_;  // the thread has nothing more to do
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
        for (;;) {
          FileDescriptor socket = connect_to(there.address, there.port, deadline, source, options.interrupted);
          try {
            handshake(socket, Role::kClient, secret, purpose, deadline, options.interrupted);
          } catch (const ConnectionEnded&) {
            // A rank that is beset by strangers makes room, and may take this one for one of them.
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
  acceptor.finish(options.interrupted);
}

}  // namespace smdp
