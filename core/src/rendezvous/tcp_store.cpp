#include "smdp/tcp_store.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/failure.h"
#include "common/fork_guard.h"
#include "common/mutex.h"
#include "common/open_files.h"
#include "common/shortage.h"
#include "rendezvous/inherited_store.h"
#include "rendezvous/store_server.h"
#include "rendezvous/store_wire.h"
#include "transport/handshake.h"

namespace smdp {
namespace {

constexpr char kHint[] = " Is rank 0 running there? SMDP_MASTER_ADDR and SMDP_MASTER_PORT must name it.";
constexpr std::chrono::milliseconds kPause{100};     // before the next try to connect
constexpr std::chrono::milliseconds kPatience{500};  // with a server that answered before and now refuses

void check_lengths(const std::string& key, const std::string& value) {
  if (key.size() > kMaxKey || value.size() > kMaxValue)
    throw InvalidArgument("[smdp] the key or value of an entry of the rendezvous store is too long.");
}

}  // namespace

// One connection per request in flight, kept for the next request, because a thread that waits for a key must not hold
// up the one that sets it. A connection on which a request failed is closed, because a late answer would be taken for
// the answer to the next request.
class TcpStore::Client {
 public:
  Client(std::string host, std::uint16_t port, std::string secret, std::chrono::milliseconds timeout,
         const Interrupted& interrupted)
      : where_(host + ", port " + std::to_string(port)),
        host_(std::move(host)),
        port_(port),
        secret_(std::move(secret)) {
    const Deadline deadline = std::chrono::steady_clock::now() + timeout;
    try {
      idle_.push_back(connect(deadline, interrupted));
    } catch (const ShortageError& error) {
      // Without a connection the other ranks would never learn the reason. Closing the reserve makes room for one, and
      // the group then fails.
      note_shortage(error);
      free_reserve();
      idle_.push_back(connect(deadline, interrupted));
    }
  }

  StoreMessage ask(StoreCommand command, const std::string& key, const std::string& value,
                   std::chrono::milliseconds timeout, const Interrupted& interrupted) {
    if (ForkGuard::in_forked_child(generation_)) throw inherited_store();
    check_lengths(key, value);
    using Limits = std::numeric_limits<std::uint32_t>;
    timeout = std::clamp(timeout, std::chrono::milliseconds(0), std::chrono::milliseconds(Limits::max()));
    StoreMessage request;
    request.header.code = static_cast<std::uint8_t>(command);
    request.header.key_bytes = static_cast<std::uint32_t>(key.size());
    request.header.value_bytes = static_cast<std::uint32_t>(value.size());
    request.header.timeout_ms = static_cast<std::uint32_t>(timeout.count());
    request.key = key;
    request.value = value;
    const Deadline deadline = std::chrono::steady_clock::now() + timeout + std::chrono::seconds(10);
    StoreMessage reply;
    try {
      try {
        reply = exchange(request, deadline, interrupted);
      } catch (const ShortageError& error) {
        // The other ranks learn of it through the group, so continue. Sending the request twice does no harm.
        note_shortage(error);
        free_reserve();
        reply = exchange(request, deadline, interrupted);
      }
    } catch (const ClosedError&) {
      throw;
    } catch (const ShortageError&) {
      throw;
    } catch (const TimeoutError& error) {
      throw TimeoutError("[smdp] the store at " + where_ + " does not answer: " + error.what());
    } catch (const Error& error) {
      throw PeerLostError("[smdp] the store at " + where_ +
                          " is gone: rank 0 of the world, which serves it, has ended (" + without_tag(error.what()) +
                          ")");
    }
    if (static_cast<StoreStatus>(reply.header.code) != StoreStatus::kFailed) return reply;
    throw ShortageError("[smdp] rank 0, which serves the store at " + where_ +
                        ", cannot serve this rank: " + without_tag(reply.value));
  }

 private:
  StoreMessage exchange(const StoreMessage& request, Deadline deadline, const Interrupted& interrupted) {
    FileDescriptor socket = take(deadline, interrupted);
    send_message(socket, request, deadline, interrupted);
    StoreMessage reply = receive_message(socket, deadline, interrupted);
    if (static_cast<StoreStatus>(reply.header.code) != StoreStatus::kFailed) {
      const Lock lock(mutex_);
      idle_.push_back(std::move(socket));
    }
    return reply;
  }

  FileDescriptor connect(Deadline deadline, const Interrupted& interrupted,
                         std::optional<std::chrono::milliseconds> patience = std::nullopt) const {
    try {
      for (;;) {
        FileDescriptor socket = connect_to(host_, port_, deadline, "", interrupted, patience);
        try {
          handshake(socket, Role::kClient, secret_, "store", deadline, interrupted);
          return socket;
        } catch (const ConnectionEnded&) {
          // A server with many unauthenticated peers makes room, and may mistake this one for one of them.
          if (std::chrono::steady_clock::now() + kPause >= deadline) throw;
          std::this_thread::sleep_for(kPause);
        }
      }
    } catch (const ClosedError&) {
      throw;
    } catch (const ShortageError&) {
      throw;
    } catch (const TimeoutError& error) {
      throw TimeoutError(std::string(error.what()) + " The store is at " + where_ + "." + kHint);
    } catch (const Error& error) {
      if (patience) throw;
      throw ConfigError(std::string(error.what()) + " The store is at " + where_ + "." + kHint);
    }
  }

  FileDescriptor take(Deadline deadline, const Interrupted& interrupted) {
    {
      const Lock lock(mutex_);
      if (!idle_.empty()) {
        FileDescriptor socket = std::move(idle_.back());
        idle_.pop_back();
        return socket;
      }
    }
    return connect(deadline, interrupted, kPatience);
  }

  const std::uint64_t generation_ = ForkGuard::generation();
  const std::string where_;
  const std::string host_;
  const std::uint16_t port_;
  const std::string secret_;
  Mutex mutex_;
  std::vector<FileDescriptor> idle_ SMDP_GUARDED_BY(mutex_);
};

// The rank that serves uses the stored values directly, without a connection to itself.
TcpStore::TcpStore(const std::string& host, std::uint16_t port, bool is_server, std::string secret,
                   std::chrono::milliseconds timeout, std::function<bool()> interrupted)
    : interrupted_(std::move(interrupted)), port_(port), generation_(ForkGuard::generation()) {
  prepare_open_files();
  if (is_server) {
    server_ = std::make_unique<Server>("", port, std::move(secret));
    port_ = server_->port();
  } else {
    client_ = std::make_unique<Client>(host, port, std::move(secret), timeout, interrupted_);
  }
}

TcpStore::~TcpStore() {
  if (!ForkGuard::in_forked_child(generation_)) return;
  // The threads do not exist in this process and their mutexes may be locked, so nothing can be destroyed.
  (void)server_.release();
  (void)client_.release();
}

std::uint16_t TcpStore::port() const { return port_; }

void TcpStore::check_owner() const {
  if (ForkGuard::in_forked_child(generation_)) throw inherited_store();
}

Store* TcpStore::own_values() {
  if (server_ == nullptr) return nullptr;
  check_owner();
  return &server_->values();
}

void TcpStore::set(const std::string& key, const std::string& value) {
  if (Store* const own = own_values()) {
    check_lengths(key, value);
    own->set(key, value);
    return;
  }
  client_->ask(StoreCommand::kSet, key, value, std::chrono::milliseconds(0), interrupted_);
}

std::string TcpStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  return get_unless(key, timeout, {});
}

std::string TcpStore::get_unless(const std::string& key, std::chrono::milliseconds timeout,
                                 const std::function<bool()>& interrupted) {
  const Interrupted& asked = interrupted ? interrupted : interrupted_;
  if (Store* const own = own_values()) return own->get_unless(key, timeout, asked);
  StoreMessage reply = client_->ask(StoreCommand::kGet, key, "", timeout, asked);
  if (static_cast<StoreStatus>(reply.header.code) == StoreStatus::kDone) return std::move(reply.value);
  throw TimeoutError("[smdp] the rendezvous store has no key '" + key + "' after " + std::to_string(timeout.count()) +
                     " ms.");
}

bool TcpStore::check(const std::string& key) {
  if (Store* const own = own_values()) return own->check(key);
  const StoreMessage reply = client_->ask(StoreCommand::kCheck, key, "", std::chrono::milliseconds(0), interrupted_);
  return static_cast<StoreStatus>(reply.header.code) == StoreStatus::kDone;
}

}  // namespace smdp
