#include "common/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "common/mutex.h"

namespace smdp {
namespace {

constexpr int kMost = ForkGuard::kMost;

// One bit per descriptor, so that the child's handler needs no memory.
struct Table {
  Mutex mutex;  // held across fork()
  std::atomic<std::uint64_t> bits[kMost / 64];
};

Table& table() {
  static Table& instance = *new Table{};
  return instance;
}

std::atomic<std::uint64_t> forks{0};

// The three handlers of a fork. The mutex is held between the first and one of the others, which clang cannot follow.
void hold() SMDP_NO_THREAD_SAFETY_ANALYSIS { table().mutex.lock(); }
void let_go() SMDP_NO_THREAD_SAFETY_ANALYSIS { table().mutex.unlock(); }
void close_all() SMDP_NO_THREAD_SAFETY_ANALYSIS {
  Table& guarded = table();
  for (int word = 0; word < kMost / 64; ++word) {
    std::uint64_t bits = guarded.bits[word].load(std::memory_order_relaxed);
    for (int bit = 0; bits != 0; ++bit, bits >>= 1) {
      if ((bits & 1) != 0) ::close(word * 64 + bit);
    }
    guarded.bits[word].store(0, std::memory_order_relaxed);
  }
  forks.fetch_add(1);
  guarded.mutex.unlock();
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] { ::pthread_atfork(hold, let_go, close_all); });
}

// Forks are counted from the start, including those before the first descriptor.
[[maybe_unused]] const bool installed = [] {
  install();
  return true;
}();

}  // namespace

void ForkGuard::add(int descriptor) noexcept {
  install();  // for objects made before `installed`
  if (descriptor < 0 || descriptor >= kMost) return;
  const Lock lock(table().mutex);
  table().bits[descriptor / 64].fetch_or(std::uint64_t{1} << (descriptor % 64));
}

void ForkGuard::remove(int descriptor) noexcept {
  if (descriptor < 0 || descriptor >= kMost) return;
  const Lock lock(table().mutex);
  table().bits[descriptor / 64].fetch_and(~(std::uint64_t{1} << (descriptor % 64)));
}

std::uint64_t ForkGuard::generation() noexcept { return forks.load(); }

}  // namespace smdp
