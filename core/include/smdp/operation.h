// Handle of one operation in flight.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "smdp/export.h"

namespace smdp {

// Thread-safe. Dropping a handle does not cancel the operation; its buffers must live until it is done. In a forked
// child what had not ended before the fork has ended with a ClosedError.
class SMDP_API Operation {
 public:
  Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation();

  // Blocks until done and throws the operation's error, if any. After `timeout` without an end: TimeoutError, and the
  // operation goes on. Without a timeout the operation's own deadline ends the wait.
  void wait(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  // Blocks until done, at most for `timeout`; false if it is not. Never throws the operation's error.
  bool wait_for(std::chrono::milliseconds timeout);

  // Blocks until done; false if `interrupted`, asked some times a second, says so first. Never throws the operation's
  // error.
  bool wait_unless(const std::function<bool()>& interrupted);

  bool done() const;
  // Null while it runs and after success.
  std::exception_ptr error() const;
  // Rank whose message a receive got; -1 before and for everything else.
  int source() const;
  // Pushes `token` to the completion queue of the process once the operation has ended, at once if it has.
  void notify(std::uint64_t token);
  // Runs on the completion thread of the process once the operation has ended, at once if it has. It must not block.
  void then(std::function<void()> callback);

  // When it left its queue, and when it ended; only after it has.
  std::chrono::steady_clock::time_point began() const;
  std::chrono::steady_clock::time_point ended() const;

  // Somebody can do nothing else before it ends: worth spinning for, where cores are to spare. Who waits says so.
  void hurry();
  bool is_urgent() const;

  // For whoever runs the operation. The first call counts.
  void begin();
  void complete(std::exception_ptr error, int source = -1);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Next token of an ended operation; nothing after `timeout`.
SMDP_API std::optional<std::uint64_t> next_completion(std::chrono::milliseconds timeout);

// Of this thread, while it waits: whether other threads of the program may make calls meanwhile. As long as they may,
// nobody concludes from this wait that this rank will not come elsewhere.
SMDP_API void note_other_threads(bool has_other_threads);

}  // namespace smdp
