#include "collectives/registry.h"

#include <algorithm>
#include <vector>

#include "collectives/engine/engine.h"
#include "common/completion.h"
#include "common/fork_guard.h"
#include "common/mutex.h"
#include "observability/trace.h"
#include "smdp/group.h"

namespace smdp {
namespace {

struct Registry {
  Mutex mutex;  // no other lock is taken under it
  std::vector<std::weak_ptr<Engine>> engines SMDP_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<Progress>> threads SMDP_GUARDED_BY(mutex);
  std::size_t turn SMDP_GUARDED_BY(mutex) = 0;
  std::uint64_t generation SMDP_GUARDED_BY(mutex) = 0;
};

Registry& registry() {
  static Registry& instance = *new Registry;  // never destroyed, because progress threads may outlive main
  return instance;
}

}  // namespace

std::shared_ptr<Progress> shared_progress(int threads) {
  Registry& all = registry();
  const Lock lock(all.mutex);
  if (all.generation != ForkGuard::generation()) {
    // The parent's threads do not exist here, so forget them without joining.
    for (auto& thread : all.threads) new std::shared_ptr<Progress>(std::move(thread));
    all.threads.clear();
    all.generation = ForkGuard::generation();
  }
  if (all.threads.size() < static_cast<std::size_t>(std::max(1, threads))) {
    all.threads.push_back(std::make_shared<Progress>());
    return all.threads.back();
  }
  return all.threads[all.turn++ % all.threads.size()];
}

void register_engine(const std::shared_ptr<Engine>& engine) {
  Registry& all = registry();
  const Lock lock(all.mutex);
  all.engines.erase(std::remove_if(all.engines.begin(), all.engines.end(), [](const auto& e) { return e.expired(); }),
                    all.engines.end());
  all.engines.push_back(engine);
}

void look_at_engines(const std::function<bool(Engine&)>& look) {
  Registry& all = registry();
  std::vector<std::shared_ptr<Engine>> engines;
  {
    const Lock lock(all.mutex);
    for (const auto& weak : all.engines) {
      if (auto engine = weak.lock()) engines.push_back(std::move(engine));
    }
  }
  for (const auto& engine : engines) {
    if (look(*engine)) break;
  }
  // If this is the last reference, the engine must not end on its own progress thread.
  run_on_completion_thread([engines = std::move(engines)] {});
}

void shutdown_all(const std::string& reason) {
  Registry& all = registry();
  std::vector<std::shared_ptr<Engine>> engines;
  {
    const Lock lock(all.mutex);
    for (const auto& weak : all.engines) {
      if (auto engine = weak.lock()) engines.push_back(std::move(engine));
    }
    all.engines.clear();
  }
  for (const auto& engine : engines) engine->shutdown(reason);
  trace::finish();  // writes what came after the last group's end
}

}  // namespace smdp
