// The server side of TcpStore: a thread that accepts and one per client, which are nearly idle after rendezvous.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "common/file_descriptor.h"
#include "common/mutex.h"
#include "common/shortage.h"
#include "rendezvous/unauthenticated.h"
#include "smdp/tcp_store.h"
#include "transport/tcp/socket.h"

namespace smdp {

class TcpStore::Server {
 public:
  Server(const std::string& host, std::uint16_t port, std::string secret);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  std::uint16_t port() const;
  // Returns the stored values, for the rank that serves.
  Store& values() { return *values_; }

 private:
  void accept_loop();
  bool has_room();
  // Starts a session for a client, if there is a thread for it.
  void receive(FileDescriptor socket);
  void serve(Session& session);
  // Sends the client the reason why it cannot be served. Runs in this thread.
  void turn_away(const FileDescriptor& socket, const ShortageError& error);
  // Does the same for all clients that connect before `end`.
  void turn_all_away(const ShortageError& error, Deadline end);
  // Waits for clients whose handshake failed because of a shortage to call again, and tells them why.
  void answer_who_calls_again();
  void refuse(const std::string& address, const std::string& why);

  const std::string secret_;
  const std::size_t most_unauthenticated_;
  const std::shared_ptr<Store> values_ = make_memory_store();
  FileDescriptor listener_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::list<Session> sessions_ SMDP_GUARDED_BY(mutex_);
  std::set<std::string> refused_ SMDP_GUARDED_BY(mutex_);            // addresses already logged
  std::optional<ShortageError> unanswered_ SMDP_GUARDED_BY(mutex_);  // what ended a client's handshake
  Deadline call_again_until_ SMDP_GUARDED_BY(mutex_);                // how long to wait for that client
  bool has_said_full_ = false;  // accepting thread only: the log says that not all can be served
  std::thread thread_;
};

}  // namespace smdp
