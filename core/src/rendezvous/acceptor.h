// Takes the calls at an address of ours until all that are expected have come. Each is greeted in a thread of its own:
// a silent peer must not hold up the others.
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

// How often who waits for it should look whether to go on.
inline constexpr std::chrono::milliseconds kInterruptionCheck{200};

class Acceptor {
 public:
  struct Setup {
    std::span<const FileDescriptor> listeners;
    // Who a caller is, for messages.
    std::function<std::string(const FileDescriptor&)> name;
    // Talks to a caller, calls proved() once it has shown the secret, and returns what puts the socket in its place, to
    // be run while nobody else does so. Both throw Error to refuse it. Any thread.
    std::function<std::function<void()>(FileDescriptor&, Deadline, const std::function<void()>& proved)> greet;
  };

  Acceptor(Setup setup, std::size_t expected, Deadline deadline);
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  // Hangs up on all that are not in their place.
  ~Acceptor();

  // Waits so long; true once all have come, or can come no more, or the deadline has passed, and nothing is put
  // anywhere any more.
  bool is_over_within(std::chrono::milliseconds time);
  // Throws ShortageError if this process could not take a call.
  bool have_all_come();
  // Runs `work` while nothing is put anywhere.
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
  Condition has_ended_;  // a session
  std::atomic<bool> stop_{false};
  std::promise<void> over_;  // the thread has nothing more to do
  const std::future<void> is_over_ = over_.get_future();
  std::thread thread_;
};

}  // namespace smdp
