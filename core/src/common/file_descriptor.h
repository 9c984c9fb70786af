// Owner of a file descriptor. ForkGuard's handler closes it in forked children, so there it owns nothing: its number
// may already belong to another descriptor.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <utility>

#include "common/fork_guard.h"

namespace smdp {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor), generation_(ForkGuard::generation()) {
    if (descriptor_ >= 0) ForkGuard::add(descriptor_);
  }
  FileDescriptor(FileDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), generation_(other.generation_) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      descriptor_ = std::exchange(other.descriptor_, -1);
      generation_ = other.generation_;
    }
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { reset(); }

  // Returns -1 in a forked child.
  int get() const { return ForkGuard::in_forked_child(generation_) ? -1 : descriptor_; }

  // Gives up ownership.
  int release() {
    const int descriptor = get();
    if (descriptor >= 0) ForkGuard::remove(descriptor);
    descriptor_ = -1;
    return descriptor;
  }
  void reset() {
    const int descriptor = release();
    if (descriptor >= 0) ::close(descriptor);
  }

 private:
  int descriptor_ = -1;
  std::uint64_t generation_ = ForkGuard::generation();
};

}  // namespace smdp
