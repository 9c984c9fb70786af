#include "smdp/operation.h"

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/completion.h"
#include "common/failure.h"
#include "common/fork_guard.h"
#include "common/mutex.h"
#include "common/per_process.h"
#include "common/thread_wait.h"
#include "common/wait_clock.h"
#include "smdp/error.h"

namespace smdp {
namespace {

// Lock order: an operation's mutex is released before this one is taken.
struct CompletionQueue {
  Mutex mutex;
  Condition condition;
  std::deque<std::uint64_t> tokens SMDP_GUARDED_BY(mutex);
};

void push_completion(std::uint64_t token) {
  auto& queue = per_process<CompletionQueue>();
  const Lock lock(queue.mutex);
  queue.tokens.push_back(token);
  queue.condition.notify_one();
}

}  // namespace

// In a forked child the mutex may be locked by a thread that does not exist there, and running operations never end.
// Nothing is locked or waited for there, and an operation that had not ended counts as ended with a ClosedError.
struct Operation::State {
  std::atomic<bool> is_urgent = false;
  const std::uint64_t fork_generation = ForkGuard::generation();
  mutable Mutex mutex;
  Condition condition;
  std::atomic<bool> done = false;  // written under mutex, after everything else that complete() sets
  struct Outcome {
    std::exception_ptr error;
    int source = -1;
    std::chrono::steady_clock::time_point began{};
    std::chrono::steady_clock::time_point ended{};
  };
  Outcome outcome SMDP_GUARDED_BY(mutex);
  std::vector<std::uint64_t> tokens SMDP_GUARDED_BY(mutex);
  std::vector<std::function<void()>> callbacks SMDP_GUARDED_BY(mutex);

  bool is_inherited() const { return ForkGuard::in_forked_child(fork_generation); }
  // The outcome of an inherited operation, which no other thread changes.
  const Outcome& inherited_outcome() const SMDP_NO_THREAD_SAFETY_ANALYSIS { return outcome; }
  std::exception_ptr inherited_error() const {
    if (done.load()) return inherited_outcome().error;
    return std::make_exception_ptr(
        ClosedError("[smdp] this process is a forked child of the one that started the operation and cannot wait for "
                    "it. Communicate in the parent, or start the child with spawn and its own smdp.init()."));
  }
};

Operation::Operation() : state_(std::make_unique<State>()) {}
Operation::~Operation() {
  // A condition on which a thread of the parent waits cannot be destroyed here, because that would wait for the thread.
  if (state_->is_inherited()) (void)state_.release();
}

void Operation::hurry() { state_->is_urgent.store(true, std::memory_order_relaxed); }
bool Operation::is_urgent() const { return state_->is_urgent.load(std::memory_order_relaxed); }

void Operation::wait(std::optional<std::chrono::milliseconds> timeout) {
  if (state_->is_inherited()) {
    if (const std::exception_ptr error = state_->inherited_error()) std::rethrow_exception(error);
    return;
  }
  hurry();
  Lock lock(state_->mutex);
  const auto is_done = [this] { return state_->done.load(); };
  if (!timeout) {
    if (!state_->condition.wait_until(lock, WaitClock::now() + kShortWait, is_done)) {
      const WaitScope scope(*this);
      state_->condition.wait(lock, is_done);
    }
  } else if (!state_->condition.wait_until(lock, WaitClock::now() + *timeout, is_done)) {
    throw TimeoutError("[smdp] wait() gave up after " + seconds(*timeout) +
                       "; the operation is still running. Call wait() again, or with a longer timeout.");
  }
  if (state_->outcome.error) std::rethrow_exception(state_->outcome.error);
}

bool Operation::wait_for(std::chrono::milliseconds timeout) {
  if (state_->is_inherited()) return true;
  hurry();
  Lock lock(state_->mutex);
  return state_->condition.wait_until(lock, WaitClock::now() + timeout, [this] { return state_->done.load(); });
}

bool Operation::wait_unless(const std::function<bool()>& interrupted) {
  std::optional<WaitScope> scope;
  while (!wait_for(kShortWait)) {
    if (interrupted()) return false;  // before others see this wait, because it may update what they need to know
    if (!scope) scope.emplace(*this);
  }
  return true;
}

bool Operation::done() const { return state_->done.load() || state_->is_inherited(); }

std::exception_ptr Operation::error() const {
  if (state_->is_inherited()) return state_->inherited_error();
  const Lock lock(state_->mutex);
  return state_->outcome.error;
}

int Operation::source() const {
  if (state_->is_inherited()) return state_->done.load() ? state_->inherited_outcome().source : -1;
  const Lock lock(state_->mutex);
  return state_->outcome.source;
}

void Operation::notify(std::uint64_t token) {
  if (!state_->is_inherited()) {
    const Lock lock(state_->mutex);
    if (!state_->done) {
      state_->tokens.push_back(token);
      return;
    }
  }
  push_completion(token);
}

void Operation::then(std::function<void()> callback) {
  if (!state_->is_inherited()) {
    const Lock lock(state_->mutex);
    if (!state_->done) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  run_on_completion_thread(std::move(callback));
}

std::chrono::steady_clock::time_point Operation::began() const {
  if (state_->is_inherited()) return state_->inherited_outcome().began;
  const Lock lock(state_->mutex);
  return state_->outcome.began;
}

std::chrono::steady_clock::time_point Operation::ended() const {
  if (state_->is_inherited()) return state_->inherited_outcome().ended;
  const Lock lock(state_->mutex);
  return state_->outcome.ended;
}

void Operation::begin() {
  const Lock lock(state_->mutex);
  state_->outcome.began = std::chrono::steady_clock::now();
}

void Operation::complete(std::exception_ptr error, int source) {
  std::vector<std::uint64_t> tokens;
  std::vector<std::function<void()>> callbacks;
  if (state_->is_inherited()) return;
  {
    const Lock lock(state_->mutex);
    if (state_->done) return;
    state_->outcome.ended = std::chrono::steady_clock::now();
    state_->outcome.error = std::move(error);
    state_->outcome.source = source;
    tokens.swap(state_->tokens);
    callbacks.swap(state_->callbacks);
    state_->done = true;
    state_->condition.notify_all();
  }
  for (const std::uint64_t token : tokens) push_completion(token);
  for (std::function<void()>& callback : callbacks) run_on_completion_thread(std::move(callback));
}

std::optional<std::uint64_t> next_completion(std::chrono::milliseconds timeout) {
  auto& queue = per_process<CompletionQueue>();
  Lock lock(queue.mutex);
  if (!queue.condition.wait_until(lock, WaitClock::now() + timeout,
                                  [&]() SMDP_REQUIRES(queue.mutex) { return !queue.tokens.empty(); })) {
    return std::nullopt;
  }
  const std::uint64_t token = queue.tokens.front();
  queue.tokens.pop_front();
  return token;
}

}  // namespace smdp
