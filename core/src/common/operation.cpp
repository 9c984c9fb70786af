#include "smdp/operation.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "common/completion.h"
#include "smdp/error.h"

namespace smdp {
namespace {

// Lock order: an operation's mutex is released before this one is taken.
struct CompletionQueue {
  std::mutex mutex;
  std::condition_variable condition;
  std::deque<std::uint64_t> tokens;  // guarded by mutex
};

CompletionQueue& completion_queue() {
  static CompletionQueue& queue = *new CompletionQueue;  // never destroyed: threads may outlive main
  return queue;
}

void push_completion(std::uint64_t token) {
  CompletionQueue& queue = completion_queue();
  const std::lock_guard lock(queue.mutex);
  queue.tokens.push_back(token);
  queue.condition.notify_one();
}

}  // namespace

struct Operation::State {
  std::atomic<bool> is_urgent = false;
  mutable std::mutex mutex;
  std::condition_variable condition;
  bool done = false;  // guarded by mutex, as all below
  std::exception_ptr error;
  int source = -1;
  std::vector<std::uint64_t> tokens;
  std::vector<std::function<void()>> callbacks;
  std::chrono::steady_clock::time_point began{};
  std::chrono::steady_clock::time_point ended{};
};

Operation::Operation() : state_(std::make_unique<State>()) {}
Operation::~Operation() = default;

void Operation::hurry() { state_->is_urgent.store(true, std::memory_order_relaxed); }
bool Operation::is_urgent() const { return state_->is_urgent.load(std::memory_order_relaxed); }

void Operation::wait(std::optional<std::chrono::milliseconds> timeout) {
  hurry();
  std::unique_lock lock(state_->mutex);
  const auto is_done = [this] { return state_->done; };
  if (!timeout) {
    state_->condition.wait(lock, is_done);
  } else if (!state_->condition.wait_until(lock, std::chrono::system_clock::now() + *timeout, is_done)) {
    throw TimeoutError("[smdp] wait() gave up after " + std::to_string(timeout->count()) +
                       " ms; the operation is still running.");
  }
  if (state_->error) std::rethrow_exception(state_->error);
}

bool Operation::wait_for(std::chrono::milliseconds timeout) {
  hurry();
  std::unique_lock lock(state_->mutex);
  return state_->condition.wait_until(lock, std::chrono::system_clock::now() + timeout,
                                      [this] { return state_->done; });
}

bool Operation::done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

std::exception_ptr Operation::error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

int Operation::source() const {
  const std::lock_guard lock(state_->mutex);
  return state_->source;
}

void Operation::notify(std::uint64_t token) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) {
      state_->tokens.push_back(token);
      return;
    }
  }
  push_completion(token);
}

void Operation::then(std::function<void()> callback) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  run_on_completion_thread(std::move(callback));
}

std::chrono::steady_clock::time_point Operation::began() const {
  const std::lock_guard lock(state_->mutex);
  return state_->began;
}

std::chrono::steady_clock::time_point Operation::ended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended;
}

void Operation::begin() {
  const std::lock_guard lock(state_->mutex);
  state_->began = std::chrono::steady_clock::now();
}

void Operation::complete(std::exception_ptr error, int source) {
  std::vector<std::uint64_t> tokens;
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->done) return;
    state_->done = true;
    state_->ended = std::chrono::steady_clock::now();
    state_->error = std::move(error);
    state_->source = source;
    tokens.swap(state_->tokens);
    callbacks.swap(state_->callbacks);
    state_->condition.notify_all();
  }
  for (const std::uint64_t token : tokens) push_completion(token);
  for (std::function<void()>& callback : callbacks) run_on_completion_thread(std::move(callback));
}

std::optional<std::uint64_t> next_completion(std::chrono::milliseconds timeout) {
  CompletionQueue& queue = completion_queue();
  std::unique_lock lock(queue.mutex);
  if (!queue.condition.wait_until(lock, std::chrono::system_clock::now() + timeout,
                                  [&] { return !queue.tokens.empty(); })) {
    return std::nullopt;
  }
  const std::uint64_t token = queue.tokens.front();
  queue.tokens.pop_front();
  return token;
}

}  // namespace smdp
