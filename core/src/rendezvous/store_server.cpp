#include "rendezvous/store_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/failure.h"
#include "common/log.h"
#include "common/open_files.h"
#include "common/service_thread.h"
#include "rendezvous/store_wire.h"
#include "transport/handshake.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kHandshake{10};
constexpr std::chrono::milliseconds kRefusal{1000};   // time in which a refused client can read the reason
constexpr std::chrono::milliseconds kRefusals{2000};  // the same for all of them
constexpr std::chrono::hours kIdle{24 * 365};
constexpr std::size_t kMostSessions = 16'384;
constexpr std::size_t kMostRefused = 1024;  // number of addresses remembered; later ones are not logged

StoreMessage answer(StoreStatus status, std::string value = "") {
  StoreMessage message;
  message.header.code = static_cast<std::uint8_t>(status);
  message.header.value_bytes = static_cast<std::uint32_t>(value.size());
  message.value = std::move(value);
  return message;
}

// Answers a request with the reason why it cannot be served.
void tell(const FileDescriptor& socket, const ShortageError& error) {
  try {
    send_message(socket, answer(StoreStatus::kFailed, error.what()), steady_clock::now() + kRefusal);
  } catch (const std::exception&) {
    // The client has left.
  }
}

}  // namespace

TcpStore::Server::Server(const std::string& host, std::uint16_t port, std::string secret)
    : secret_(std::move(secret)), most_unauthenticated_(most_unauthenticated()) {
  try {
    try {
      listener_ = listen_on(host, port);
    } catch (const ShortageError& error) {
      // Without a listener the other ranks would never learn the reason. Closing the reserve makes room for one, and
      // the group then fails.
      note_shortage(error);
      free_reserve();
      listener_ = listen_on(host, port);
    }
  } catch (const ShortageError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(std::string(error.what()) +
                      ". Set SMDP_MASTER_PORT to a free port, or stop the process that uses this one.");
  }
  try {
    thread_ = service_thread("smdp-store", [this] { accept_loop(); });
  } catch (const ShortageError& error) {
    turn_all_away(error, steady_clock::now() + kRefusals);
    throw;
  }
}

TcpStore::Server::~Server() {
  stopping_.store(true);
  thread_.join();
  answer_who_calls_again();
  // Without mutex_, which sessions take to log. No other thread changes the list once the accepting thread is gone.
  for (Session& session : sessions_) ::shutdown(session.socket.get(), SHUT_RDWR);
  for (Session& session : sessions_) session.thread.join();
}

std::uint16_t TcpStore::Server::port() const { return local_port(listener_); }

bool TcpStore::Server::has_room() {
  const Lock lock(mutex_);
  return has_room_for_unauthenticated(sessions_, most_unauthenticated_);
}

void TcpStore::Server::accept_loop() {
  while (!stopping_.load()) {
    const auto soon = steady_clock::now() + milliseconds(100);
    bool has_come = false;
    try {
      FileDescriptor socket;
      if (has_room()) socket = accept_from({&listener_, 1}, soon);
      has_come = socket.get() >= 0;
      receive(std::move(socket));
    } catch (const ShortageError& error) {
      // This rank's group fails, and connected ranks are told. The reserve makes room for some that are not connected.
      note_shortage(error);
      free_reserve();
      if (!std::exchange(has_said_full_, true)) {
        log(LogLevel::kError, "the store cannot serve all ranks: " + without_tag(error.what()));
      }
    }
    // Connections that cannot be accepted stay in the queue, and poll() returns at once, so wait here.
    if (!has_come) std::this_thread::sleep_until(std::min(soon, steady_clock::now() + milliseconds(20)));
  }
}

void TcpStore::Server::receive(FileDescriptor socket) {
  Lock lock(mutex_);
  forget_ended(sessions_);
  if (socket.get() < 0 || sessions_.size() >= kMostSessions) return;
  Session& session = sessions_.emplace_back();
  session.socket = std::move(socket);
  session.address = peer_address(session.socket);
  try {
    session.thread = service_thread("smdp-store", [this, &session] { serve(session); });
  } catch (const ShortageError& error) {
    const FileDescriptor refused = std::move(session.socket);
    sessions_.pop_back();
    lock.unlock();
    turn_away(refused, error);
    throw;
  }
}

void TcpStore::Server::turn_away(const FileDescriptor& socket, const ShortageError& error) {
  try {
    const Deadline soon = steady_clock::now() + kRefusal;
    handshake(socket, Role::kServer, secret_, "store", soon);
    receive_message(socket, soon);
    tell(socket, error);
  } catch (const std::exception&) {
    // An unauthenticated peer, or one that has left.
  }
}

void TcpStore::Server::turn_all_away(const ShortageError& error, Deadline end) {
  while (steady_clock::now() < end) {
    const FileDescriptor socket = accept_from({&listener_, 1}, end);
    if (socket.get() >= 0) turn_away(socket, error);
  }
}

void TcpStore::Server::answer_who_calls_again() {
  Lock lock(mutex_);
  const std::optional<ShortageError> error = unanswered_;
  const Deadline end = call_again_until_;
  lock.unlock();
  if (!error) return;
  try {
    turn_all_away(*error, end);
  } catch (const std::exception&) {
    // No resources are left to answer with, and this rank is ending.
  }
}

void TcpStore::Server::refuse(const std::string& address, const std::string& why) {
  {
    const Lock lock(mutex_);
    if (refused_.size() >= kMostRefused || !refused_.insert(address).second) return;
  }
  log(LogLevel::kWarning, "refused a connection from " + address + ": " + why);
}

void TcpStore::Server::serve(Session& session) {
  try {
    handshake(session.socket, Role::kServer, secret_, "store", steady_clock::now() + kHandshake, {}, [&] {
      const Lock lock(mutex_);
      session.is_authenticated = true;
    });
  } catch (const std::exception& error) {
    if (const auto* lack = dynamic_cast<const ShortageError*>(&error)) {
      note_shortage(*lack);
      // The client connects again, when this rank may already be ending.
      const Lock lock(mutex_);
      unanswered_ = *lack;
      call_again_until_ = steady_clock::now() + kRefusal;
    }
    if (!stopping_.load()) refuse(session.address, error.what());
    ::shutdown(session.socket.get(), SHUT_RDWR);
    session.ended.store(true);
    return;
  }
  try {
    for (;;) {
      const StoreMessage request = receive_message(session.socket, steady_clock::now() + kIdle);
      StoreMessage reply;
      switch (static_cast<StoreCommand>(request.header.code)) {
        case StoreCommand::kSet:
          values_->set(request.key, request.value);
          reply = answer(StoreStatus::kDone);
          break;
        case StoreCommand::kCheck:
          reply = answer(values_->check(request.key) ? StoreStatus::kDone : StoreStatus::kMissing);
          break;
        case StoreCommand::kGet: {
          reply = answer(StoreStatus::kMissing);
          const auto deadline = steady_clock::now() + milliseconds(request.header.timeout_ms);
          // Waits in short intervals, so that the server can stop.
          while (!stopping_.load()) {
            try {
              const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
              reply = answer(StoreStatus::kDone,
                             values_->get(request.key, std::clamp(left, milliseconds(0), milliseconds(200))));
              break;
            } catch (const TimeoutError&) {
              if (steady_clock::now() >= deadline) break;
            }
          }
          break;
        }
        default:
          throw Error("[smdp] a client sent an unknown store command.");
      }
      send_message(session.socket, reply, steady_clock::now() + kHandshake);
    }
  } catch (const ShortageError& error) {
    note_shortage(error);
    tell(session.socket, error);
  } catch (const std::exception&) {
    // The client left, which is how every session ends.
  }
  ::shutdown(session.socket.get(), SHUT_RDWR);
  session.ended.store(true);
}

}  // namespace smdp
