#include "transport/shm/peer_doorbells.h"

#include <map>
#include <utility>

#include "common/mutex.h"
#include "common/per_process.h"

namespace smdp {
namespace {

struct Doorbells {
  Mutex mutex;
  std::map<std::string, std::weak_ptr<const FileDescriptor>> known SMDP_GUARDED_BY(mutex);  // by name
};

}  // namespace

Doorbell keep_doorbell(const std::string& name, FileDescriptor received) {
  Doorbells& doorbells = per_process<Doorbells>();
  const Lock lock(doorbells.mutex);
  std::erase_if(doorbells.known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const FileDescriptor>& known = doorbells.known[name];
  if (Doorbell kept = known.lock()) return kept;
  auto kept = std::make_shared<const FileDescriptor>(std::move(received));
  known = kept;
  return kept;
}

}  // namespace smdp
