#include "common/completion.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "common/fork_guard.h"
#include "common/service_thread.h"

namespace smdp {
namespace {

struct Completion {
  std::mutex mutex;  // guards `callbacks`; nothing is called under it
  std::condition_variable condition;
  std::deque<std::function<void()>> callbacks;
  const std::uint64_t generation = ForkGuard::generation();

  Completion() {
    service_thread("smdp-completion", [this] {
      for (;;) next()();
    }).detach();
  }

  std::function<void()> next() {
    std::unique_lock lock(mutex);
    condition.wait(lock, [this] { return !callbacks.empty(); });
    std::function<void()> callback = std::move(callbacks.front());
    callbacks.pop_front();
    return callback;
  }
};

Completion& completion() {
  // Never destroyed: the thread may outlive main.
  static std::mutex& mutex = *new std::mutex;
  static Completion* current = nullptr;
  const std::lock_guard lock(mutex);
  if (current == nullptr || ForkGuard::in_forked_child(current->generation)) current = new Completion;
  return *current;
}

}  // namespace

void run_on_completion_thread(std::function<void()> callback) {
  Completion& all = completion();
  const std::lock_guard lock(all.mutex);
  all.callbacks.push_back(std::move(callback));
  all.condition.notify_one();
}

}  // namespace smdp
