#include "common/thread_wait.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "common/mutex.h"
#include "common/per_process.h"
#include "smdp/operation.h"

namespace smdp {
namespace {

std::uint64_t random_start() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

struct Waits {
  Mutex mutex;  // nothing is called under it
  std::map<std::uint64_t, ThreadWait> by_thread SMDP_GUARDED_BY(mutex);
  std::map<int, std::set<std::uint64_t>> callers SMDP_GUARDED_BY(mutex);  // by rank of the world
  std::uint64_t last_id SMDP_GUARDED_BY(mutex) = random_start();
};

Waits& waits() { return per_process<Waits>(); }

thread_local bool has_other_threads_here = false;  // as last reported

}  // namespace

bool ThreadWait::replaces(const std::string& other) const {
  return std::find(replaced.begin(), replaced.end(), other) != replaced.end();
}

WaitScope::WaitScope(const Operation& operation) {
  ThreadWait wait;
  wait.operation = &operation;
  enter(std::move(wait));
}
WaitScope::WaitScope(std::string group, int size, int world_rank, std::string purpose,
                     std::vector<std::string> replaced) {
  ThreadWait wait;
  wait.group = std::move(group);
  wait.size = size;
  wait.world_rank = world_rank;
  wait.purpose = std::move(purpose);
  wait.replaced = std::move(replaced);
  enter(std::move(wait));
}

void WaitScope::enter(ThreadWait wait) {
  wait.since = std::chrono::steady_clock::now();
  wait.has_other_threads = has_other_threads_here;
  Waits& all = waits();
  const Lock lock(all.mutex);
  wait.id = ++all.last_id;
  if (wait.id == 0) wait.id = ++all.last_id;
  id_ = wait.id;
  ThreadWait& mine = all.by_thread[this_thread()];
  if (mine.id != 0) outer_ = std::move(mine);
  mine = std::move(wait);
}

WaitScope::~WaitScope() {
  Waits& all = waits();
  const Lock lock(all.mutex);
  if (outer_) {
    all.by_thread[this_thread()] = std::move(*outer_);
  } else {
    all.by_thread.erase(this_thread());
  }
}

std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t number = ++last;
  return number;
}

void note_caller(int world_rank) {
  // A thread that has ended makes no more calls.
  struct Life {
    ~Life() {
      Waits& all = waits();
      const Lock lock(all.mutex);
      for (auto& [rank, callers] : all.callers) callers.erase(thread);
    }
    const std::uint64_t thread = this_thread();
  };
  thread_local const Life life;
  (void)life;
  Waits& all = waits();
  const Lock lock(all.mutex);
  all.callers[world_rank].insert(this_thread());
}

bool is_only_caller(int world_rank, std::uint64_t thread) {
  Waits& all = waits();
  const Lock lock(all.mutex);
  const std::set<std::uint64_t>& callers = all.callers[world_rank];
  return callers.size() == 1 && *callers.begin() == thread;
}

std::optional<ThreadWait> wait_of(std::uint64_t thread) {
  Waits& all = waits();
  const Lock lock(all.mutex);
  const auto found = all.by_thread.find(thread);
  if (found == all.by_thread.end()) return std::nullopt;
  return found->second;
}

std::optional<ThreadWait> meeting_of(int world_rank, std::chrono::steady_clock::duration age) {
  Waits& all = waits();
  const Lock lock(all.mutex);
  std::optional<ThreadWait> oldest;
  auto before = std::chrono::steady_clock::now() - age;
  for (const auto& [thread, wait] : all.by_thread) {
    if (wait.operation != nullptr || wait.world_rank != world_rank || wait.since >= before) continue;
    oldest = wait;
    before = wait.since;
  }
  return oldest;
}

void note_other_threads(bool has_other_threads) {
  has_other_threads_here = has_other_threads;
  Waits& all = waits();
  const Lock lock(all.mutex);
  const auto found = all.by_thread.find(this_thread());
  if (found != all.by_thread.end()) found->second.has_other_threads = has_other_threads;
}

void break_wait(std::uint64_t id, std::exception_ptr error) {
  Waits& all = waits();
  const Lock lock(all.mutex);
  for (auto& [thread, wait] : all.by_thread) {
    if (wait.id == id) wait.broken = std::move(error);
  }
}

std::exception_ptr broken_wait(std::uint64_t id) {
  Waits& all = waits();
  const Lock lock(all.mutex);
  for (const auto& [thread, wait] : all.by_thread) {
    if (wait.id == id) return wait.broken;
  }
  return nullptr;
}

}  // namespace smdp
