#include <cstdint>
#include <map>

#include "common/fork_guard.h"
#include "common/mutex.h"
#include "common/wait_clock.h"
#include "rendezvous/inherited_store.h"
#include "smdp/error.h"
#include "smdp/store.h"

namespace smdp {
namespace {

class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    check_owner();
    const Lock lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    check_owner();
    Lock lock(mutex_);
    const auto start = std::chrono::steady_clock::now();
    while (values_.count(key) == 0) {
      const auto left = timeout - (std::chrono::steady_clock::now() - start);
      if (left > left.zero()) {
        changed_.wait_until(lock, WaitClock::now() + left);
        continue;
      }
      throw TimeoutError("[smdp] the rendezvous store has no key '" + key + "' after " +
                         std::to_string(timeout.count()) + " ms.");
    }
    return values_[key];
  }

  bool check(const std::string& key) override {
    check_owner();
    const Lock lock(mutex_);
    return values_.count(key) != 0;
  }

  // No other rank can read what a forked child writes into its copy.
  void check_owner() const override {
    if (ForkGuard::in_forked_child(generation_)) throw inherited_store();
  }

 private:
  const std::uint64_t generation_ = ForkGuard::generation();
  Mutex mutex_;
  Condition changed_;
  std::map<std::string, std::string> values_ SMDP_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace smdp
