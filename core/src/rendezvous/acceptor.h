// Accepts connections until all expected ones have been made. Each peer is greeted in its own thread, so that a silent
// peer does not hold up the others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "common/file_descriptor.h"
#include "common/mutex.h"
#include "common/shortage.h"
#include "rendezvous/unauthenticated.h"
#include "transport/tcp/socket.h"

namespace smdp {

// How often a waiting thread should check whether to continue.
inline constexpr std::chrono::milliseconds kInterruptionCheck{200};

class Acceptor {
 public:
  struct Setup {
    std::span<const FileDescriptor> listeners;
    // Returns a peer's name for messages.
    std::function<std::string(const FileDescriptor&)> name;
    // Talks to a peer, calls proved() once the peer has proved the secret, and returns a function that moves the socket
    // to its place; such functions run one at a time. Both throw Error to refuse the peer. Any thread.
    std::function<std::function<void()>(FileDescriptor&, Deadline, const std::function<void()>& proved)> greet;
  };

  Acceptor(Setup setup, std::size_t expected, Deadline deadline);
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  // Closes all connections that have not been moved to their place.
  ~Acceptor();

  // Waits for this long. Returns true once all have joined, or cannot join any more, or the deadline has passed. No
  // socket is moved afterwards.
  bool is_over_within(std::chrono::milliseconds time);
  // Throws ShortageError if this process could not accept a connection.
  bool have_all_come();
  // Runs `work` while no socket is being moved.
  void run_apart(const std::function<void()>& work);

 private:
  void loop();
  bool is_wanted();
  bool has_room();
  void take(FileDescriptor socket);
  void greet(Session& session);
  void await_authenticated();
  void hang_up();
  void join_all();
  void refuse(const std::string& who, const std::string& why) SMDP_REQUIRES(mutex_);
  void fail(const ShortageError& error);

  const Setup setup_;
  const Deadline deadline_;
  const std::size_t most_unauthenticated_ = most_unauthenticated();
  const FileDescriptor wake_;  // an eventfd, set when nothing more is to be accepted
  Mutex mutex_;
  // Also guards the sockets that greet() hands over while the threads run.
  std::size_t missing_ SMDP_GUARDED_BY(mutex_);
  std::list<Session> sessions_ SMDP_GUARDED_BY(mutex_);
  std::set<std::string> refused_ SMDP_GUARDED_BY(mutex_);
  std::optional<ShortageError> failure_ SMDP_GUARDED_BY(mutex_);
  Condition has_ended_;  // notified when a session ends
  std::atomic<bool> stop_{false};
  std::promise<void> over_;  // set when the thread has nothing more to do
  const std::future<void> is_over_ = over_.get_future();
  std::thread thread_;
};

}  // namespace smdp
