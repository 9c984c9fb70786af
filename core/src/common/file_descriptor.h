// Owner of a file descriptor, closed in forked children.
#pragma once

#include <unistd.h>

#include <utility>

#include "common/fork_guard.h"

namespace smdp {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {
    if (descriptor_ >= 0) ForkGuard::add(descriptor_);
  }
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { reset(); }

  int get() const { return descriptor_; }

  // Gives up ownership.
  int release() {
    if (descriptor_ >= 0) ForkGuard::remove(descriptor_);
    return std::exchange(descriptor_, -1);
  }
  void reset() {
    const int descriptor = release();
    if (descriptor >= 0) ::close(descriptor);
  }

 private:
  int descriptor_ = -1;
};

}  // namespace smdp
