#include "common/completion.h"

#include <deque>
#include <utility>

#include "common/fork_guard.h"
#include "common/mutex.h"
#include "common/service_thread.h"

namespace smdp {
namespace {

struct Completion {
  Mutex mutex;  // nothing is called under it
  Condition condition;
  std::deque<std::function<void()>> callbacks SMDP_GUARDED_BY(mutex);
  const std::uint64_t generation = ForkGuard::generation();

  Completion() {
    service_thread("smdp-completion", [this] {
      for (;;) next()();
    }).detach();
  }

  std::function<void()> next() {
    Lock lock(mutex);
    condition.wait(lock, [this]() SMDP_REQUIRES(mutex) { return !callbacks.empty(); });
    std::function<void()> callback = std::move(callbacks.front());
    callbacks.pop_front();
    return callback;
  }
};

Completion& completion() {
  // Never destroyed, because the thread may outlive main.
  static Mutex& mutex = *new Mutex;
  static Completion* current SMDP_GUARDED_BY(mutex) = nullptr;
  const Lock lock(mutex);
  if (current == nullptr || ForkGuard::in_forked_child(current->generation)) current = new Completion;
  return *current;
}

}  // namespace

void run_on_completion_thread(std::function<void()> callback) {
  Completion& all = completion();
  const Lock lock(all.mutex);
  all.callbacks.push_back(std::move(callback));
  all.condition.notify_one();
}

}  // namespace smdp
