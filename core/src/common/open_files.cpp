#include "common/open_files.h"

#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "common/file_descriptor.h"
#include "common/mutex.h"
#include "common/per_process.h"

namespace smdp {
namespace {

// Enough for a connection and the lookup of a name.
constexpr std::size_t kReserve = 4;

struct OpenFiles {
  Mutex mutex;
  std::array<FileDescriptor, kReserve> reserve SMDP_GUARDED_BY(mutex);
  std::optional<ShortageError> noted SMDP_GUARDED_BY(mutex);
  bool has_meeting SMDP_GUARDED_BY(mutex) = false;
};

OpenFiles& open_files() { return per_process<OpenFiles>(); }

}  // namespace

void raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, ForkGuard::kMost);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if a sandbox forbids it, the old limit stays
}

void prepare_open_files() {
  raise_open_files_limit();
  OpenFiles& files = open_files();
  const Lock lock(files.mutex);
  files.has_meeting = true;
  for (FileDescriptor& spare : files.reserve) {
    if (spare.get() >= 0) continue;
    spare = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
    if (spare.get() < 0 && !files.noted) files.noted = shortage("eventfd", "the reserve of descriptors", errno);
  }
}

void free_reserve() {
  OpenFiles& files = open_files();
  const Lock lock(files.mutex);
  for (FileDescriptor& spare : files.reserve) spare.reset();
}

void note_shortage(const ShortageError& error) {
  OpenFiles& files = open_files();
  const Lock lock(files.mutex);
  if (files.has_meeting && !files.noted) files.noted = error;
}

void throw_noted_shortage() {
  OpenFiles& files = open_files();
  std::optional<ShortageError> noted;
  {
    const Lock lock(files.mutex);
    noted.swap(files.noted);
  }
  if (noted) throw ShortageError(*noted);
}

void release_open_files() {
  free_reserve();
  OpenFiles& files = open_files();
  const Lock lock(files.mutex);
  files.noted.reset();
  files.has_meeting = false;
}

}  // namespace smdp
