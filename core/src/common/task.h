// Coroutines that implement operations: an algorithm reads from top to bottom and suspends where it waits for a peer. A
// Scheduler holds the suspended coroutines of one operation; the thread that drives the operation polls it.
//
// Thread safety: none. One thread at a time drives an operation (see Engine).
#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

namespace smdp {

// The waits of one operation. A wait is a predicate that is polled until it holds.
class Scheduler {
 public:
  struct Wait {
    bool (*ready)(void*);  // may throw, which fails the operation
    void* argument;
    int peer;  // rank that it waits for; -1: no particular rank
    std::coroutine_handle<> handle;
  };

  void add(const Wait& wait) { waits_.push_back(wait); }

  // Resumes every coroutine whose wait is over, or all of them after fail(). Returns whether any was resumed.
  bool poll();

  // Returns whether a coroutine whose wait is over at once may continue; limited, so that the thread gets to other
  // work.
  bool may_go_on() { return ++burst_ < kBurst; }

  // Makes every present and future wait throw `error`. The first error wins.
  void fail(std::exception_ptr error) {
    if (!error_) error_ = std::move(error);
  }

  const std::exception_ptr& error() const { return error_; }
  const std::vector<Wait>& waits() const { return waits_; }

 private:
  static constexpr int kBurst = 32;

  std::vector<Wait> waits_;
  std::exception_ptr error_;
  int burst_ = 0;  // waits that were over at once since the last poll()
};

// A lazily started coroutine without a value. Await it in another Task, or start() it with a Scheduler.
class Task {
 public:
  struct Latch {
    std::size_t remaining;
    std::coroutine_handle<> parent;
  };

  struct promise_type {
    Scheduler* scheduler = nullptr;
    std::coroutine_handle<> continuation;
    Latch* latch = nullptr;
    std::exception_ptr error;

    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }

    struct Final {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> handle) noexcept {
        promise_type& promise = handle.promise();
        if (promise.latch != nullptr) {
          return --promise.latch->remaining == 0 ? promise.latch->parent : std::noop_coroutine();
        }
        return promise.continuation ? promise.continuation : std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };
    Final final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() {
      error = std::current_exception();
      scheduler->fail(error);
    }
  };
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      if (handle_) handle_.destroy();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Runs up to the first wait.
  void start(Scheduler& scheduler) {
    handle_.promise().scheduler = &scheduler;
    handle_.resume();
  }
  bool done() const { return handle_.done(); }
  Handle handle() const { return handle_; }

  bool await_ready() const noexcept { return false; }
  Handle await_suspend(Handle parent) {
    handle_.promise().scheduler = parent.promise().scheduler;
    handle_.promise().continuation = parent;
    return handle_;
  }
  void await_resume() const {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
  }

 private:
  Handle handle_;
};

// `co_await until(peer, predicate)`: suspends until the predicate holds. It is polled, so it must be cheap.
template <class Predicate>
class Until {
 public:
  Until(int peer, Predicate predicate) : peer_(peer), predicate_(std::move(predicate)) {}
  bool await_ready() const noexcept { return false; }
  bool await_suspend(Task::Handle handle) {
    Scheduler* scheduler = handle.promise().scheduler;
    if (predicate_() && scheduler->may_go_on()) return false;
    scheduler_ = scheduler;
    scheduler_->add({[](void* self) { return static_cast<Until*>(self)->predicate_(); }, this, peer_, handle});
    return true;
  }
  void await_resume() const {
    if (scheduler_ != nullptr && scheduler_->error()) std::rethrow_exception(scheduler_->error());
  }

 private:
  int peer_;
  Predicate predicate_;
  Scheduler* scheduler_ = nullptr;
};

template <class Predicate>
Until<Predicate> until(int peer, Predicate predicate) {
  return Until<Predicate>(peer, std::move(predicate));
}

// `co_await when_all(tasks)`: runs all of them, interleaved at their waits, until the last one has ended.
class WhenAll {
 public:
  explicit WhenAll(std::vector<Task> tasks) : tasks_(std::move(tasks)) {}
  bool await_ready() const { return tasks_.empty(); }
  bool await_suspend(Task::Handle parent) {
    latch_ = {tasks_.size() + 1, parent};
    for (Task& task : tasks_) {
      task.handle().promise().latch = &latch_;
      task.start(*parent.promise().scheduler);
    }
    return --latch_.remaining != 0;
  }
  void await_resume() const {
    for (const Task& task : tasks_) task.await_resume();
  }

 private:
  std::vector<Task> tasks_;
  Task::Latch latch_{};
};

inline WhenAll when_all(std::vector<Task> tasks) { return WhenAll(std::move(tasks)); }

}  // namespace smdp
