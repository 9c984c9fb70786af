// Handle of an operation in flight.
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
// child, operations that had not ended before the fork end with ClosedError.
class SMDP_API Operation {
 public:
  Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation();

  // Blocks until the operation is done and throws its error, if any. Throws TimeoutError after `timeout`; the operation
  // then continues. Without a timeout the operation's own deadline ends the wait.
  void wait(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  // Blocks until the operation is done, at most for `timeout`. Returns whether it is. Never throws the operation's
  // error.
  bool wait_for(std::chrono::milliseconds timeout);

  // Blocks until the operation is done, or until `interrupted`, which is polled several times a second, returns true.
  // Returns whether the operation is done. Never throws its error.
  bool wait_unless(const std::function<bool()>& interrupted);

  bool done() const;
  // Returns the error; null while the operation runs and after success.
  std::exception_ptr error() const;
  // Returns the rank whose message a receive got; -1 before that and for all other operations.
  int source() const;
  // Pushes `token` to the process's completion queue once the operation has ended, or at once if it already has.
  void notify(std::uint64_t token);
  // Runs `callback` on the process's completion thread once the operation has ended, or at once if it already has. It
  // must not block.
  void then(std::function<void()> callback);

  // Return when the operation left its queue and when it ended. Valid only after it has ended.
  std::chrono::steady_clock::time_point began() const;
  std::chrono::steady_clock::time_point ended() const;

  // hurry() marks the operation as urgent: its waiting thread has nothing else to do, so spinning for it is worthwhile
  // if there are cores to spare. The waiting thread calls it.
  void hurry();
  bool is_urgent() const;

  // For the code that runs the operation. Only the first call counts.
  void begin();
  void complete(std::exception_ptr error, int source = -1);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the next token of an ended operation, or nothing after `timeout`.
SMDP_API std::optional<std::uint64_t> next_completion(std::chrono::milliseconds timeout);

// Notes for this thread, while it waits, whether other threads of the program may make calls in the meantime. As long
// as they may, other ranks do not conclude from this wait that this rank will not join another call.
SMDP_API void note_other_threads(bool has_other_threads);

}  // namespace smdp
