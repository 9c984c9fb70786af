// Shares memory of one rank with others of its host. Its descriptor goes over an abstract Unix socket that exists only
// meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/file_descriptor.h"
#include "transport/shm/shared_mapping.h"
#include "transport/tcp/socket.h"

namespace smdp {

// What the other ranks must know. Plain bytes, so that ranks can send it to each other.
struct MeetingPoint {
  static constexpr std::size_t kBytes = 16;
  unsigned char name[kBytes];
  unsigned char secret[kBytes];
};

// Unmapped with its last owner.
using SharedBytes = std::shared_ptr<std::byte>;

// The side that passes. The socket accepts connections as soon as this object exists.
class MemoryPassing {
 public:
  // Allocates all of the memory, filled with zeros. purpose: for messages; a literal.
  MemoryPassing(std::size_t bytes, const char* purpose);
  MemoryPassing(const MemoryPassing&) = delete;
  MemoryPassing& operator=(const MemoryPassing&) = delete;
  // Closes the descriptor; the memory stays mapped.
  ~MemoryPassing() { mapping_->close_descriptor(); }
  const MeetingPoint& point() const { return point_; }
  SharedBytes memory() const { return {mapping_, mapping_->data()}; }
  // Passes it to `receivers` ranks. `interrupted` is polled; when it returns true, ClosedError is thrown.
  void pass(std::size_t receivers, Deadline deadline, const Interrupted& interrupted) const;

 private:
  const std::shared_ptr<SharedMapping> mapping_;
  const MeetingPoint point_;
  const FileDescriptor listener_;
};

// The side that receives. Throws Error if nothing comes in time.
SharedBytes receive_memory(const MeetingPoint& point, std::size_t bytes, const char* purpose, Deadline deadline,
                           const Interrupted& interrupted);

}  // namespace smdp
