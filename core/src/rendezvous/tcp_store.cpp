#include "smdp/tcp_store.h"

#include <mutex>
#include <utility>

#include "rendezvous/store_server.h"
#include "rendezvous/store_wire.h"
#include "transport/handshake.h"

namespace smdp {

// One connection; requests of several threads take turns.
class TcpStore::Client {
 public:
  Client(const std::string& host, std::uint16_t port, std::string_view secret, std::chrono::milliseconds timeout)
      : where_(host + ", port " + std::to_string(port)) {
    const Deadline deadline = std::chrono::steady_clock::now() + timeout;
    try {
      socket_ = connect_to(host, port, deadline);
    } catch (const TimeoutError& error) {
      throw TimeoutError(std::string(error.what()) +
                         " Is rank 0 running there? SMDP_MASTER_ADDR and SMDP_MASTER_PORT must name it.");
    }
    handshake(socket_, Role::kClient, secret, "store", std::chrono::steady_clock::now() + std::chrono::seconds(10));
  }

  StoreMessage ask(StoreCommand command, const std::string& key, const std::string& value,
                   std::chrono::milliseconds timeout) {
    if (key.size() > kMaxKey || value.size() > kMaxValue) throw InvalidArgument("[smdp] a store entry is too long.");
    StoreMessage request;
    request.header.code = static_cast<std::uint8_t>(command);
    request.header.key_bytes = static_cast<std::uint32_t>(key.size());
    request.header.value_bytes = static_cast<std::uint32_t>(value.size());
    request.header.timeout_ms = static_cast<std::uint32_t>(timeout.count());
    request.key = key;
    request.value = value;
    const std::lock_guard lock(mutex_);
    const Deadline deadline = std::chrono::steady_clock::now() + timeout + std::chrono::seconds(10);
    try {
      send_message(socket_, request, deadline);
      return receive_message(socket_, deadline);
    } catch (const TimeoutError&) {
      throw;
    } catch (const Error& error) {
      throw PeerLostError("[smdp] the store at " + where_ + " is gone (rank 0 ended?): " + error.what());
    }
  }

 private:
  const std::string where_;
  std::mutex mutex_;
  FileDescriptor socket_;  // guarded by mutex_
};

TcpStore::TcpStore(const std::string& host, std::uint16_t port, bool is_server, std::string secret,
                   std::chrono::milliseconds timeout)
    : server_(is_server ? std::make_unique<Server>("", port, secret) : nullptr),
      port_(is_server ? server_->port() : port) {
  client_ = std::make_unique<Client>(is_server ? "localhost" : host, port_, secret, timeout);
}

TcpStore::~TcpStore() = default;

std::uint16_t TcpStore::port() const { return port_; }

void TcpStore::set(const std::string& key, const std::string& value) {
  client_->ask(StoreCommand::kSet, key, value, std::chrono::milliseconds(0));
}

std::string TcpStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  StoreMessage reply = client_->ask(StoreCommand::kGet, key, "", timeout);
  if (static_cast<StoreStatus>(reply.header.code) == StoreStatus::kDone) return std::move(reply.value);
  throw TimeoutError("[smdp] the store has no '" + key + "' after " + std::to_string(timeout.count()) + " ms.");
}

bool TcpStore::check(const std::string& key) {
  const StoreMessage reply = client_->ask(StoreCommand::kCheck, key, "", std::chrono::milliseconds(0));
  return static_cast<StoreStatus>(reply.header.code) == StoreStatus::kDone;
}

}  // namespace smdp
