#include "transport/shm/shared_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "common/free_memory.h"
#include "common/shortage.h"

namespace smdp {
namespace {

// A cgroup that runs out of memory kills a process instead of failing the call.
void take_pages(int memfd, std::size_t bytes, const char* purpose) {
  if (const FreeMemory left = free_memory(); bytes > left.bytes) {
    throw ShortageError(std::string("[smdp] memory for ") + purpose + " needs " + std::to_string(bytes) +
                        " bytes, and this host has " + std::to_string(left.bytes) + " left (limit: " + left.limit +
                        "). Leave out share_parameters=True, or use a machine with more memory.");
  }
  while (::fallocate(memfd, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) throw shortage("fallocate", purpose, errno, bytes);
  }
}

}  // namespace

SharedMapping::SharedMapping(std::size_t bytes, const char* purpose, Pages pages)
    : memfd_(::memfd_create("smdp", MFD_CLOEXEC)), bytes_(bytes) {
  if (memfd_.get() < 0) throw shortage("memfd_create", purpose, errno, bytes);
  if (::ftruncate(memfd_.get(), static_cast<off_t>(bytes)) != 0) throw shortage("ftruncate", purpose, errno, bytes);
  if (pages == Pages::kAtOnce) take_pages(memfd_.get(), bytes, purpose);
  map(purpose);
}

SharedMapping::SharedMapping(FileDescriptor memfd, std::size_t bytes, const char* purpose)
    : memfd_(std::move(memfd)), bytes_(bytes) {
  map(purpose);
  close_descriptor();
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

void SharedMapping::map(const char* purpose) {
  void* address = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_.get(), 0);
  if (address == MAP_FAILED) throw shortage("mmap", purpose, errno, bytes_);
  data_ = static_cast<std::byte*>(address);
}

}  // namespace smdp
