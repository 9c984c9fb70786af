// Moves gradients of one CUDA device to fusion buffers in pinned host memory and back. They are gathered on the device
// and copied to the host once per buffer and run of neighbors, in the staging's own streams.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "device/cuda_device.h"
#include "fusion/fusion_buffer.h"

namespace smdp {

// Thread safety: gather(), flush() and settle() may be called by several threads; the others by one at a time. None may
// run during destruction, and a forked child must not destroy it.
class DeviceStaging {
 public:
  // Reports gradients that have arrived at their places in host memory, or the error why they never will. Called by a
  // thread of this object.
  using Arrived = std::function<void(const std::vector<std::size_t>& indices, const std::exception_ptr& error)>;

  // Throws InvalidArgument if the device does not exist, and Error without a driver.
  DeviceStaging(int device, Arrived arrived);
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;
  // Waits for copies in flight, without reporting them.
  ~DeviceStaging();

  // Pins the memory of a buffer. Called before any of it is gathered.
  void pin(FusionBuffer& buffer) const;

  struct Piece {
    std::size_t index;  // of the gradient
    const Gradient& gradient;
    std::size_t offset;  // elements; of its place in the buffer
  };
  // Gathers gradient `piece`, stored at `data` on this device and complete after `event` (null: now). number: of the
  // buffer.
  void gather(std::size_t number, const FusionBuffer& buffer, const Piece& piece, const void* data, cuda::Handle event);
  // Sends a buffer, once all its gradients have been gathered.
  void flush(std::size_t number);

  // Copies back. The source memory must not change before synchronize().
  void store(void* data, const std::byte* from, const Gradient& gradient);
  // Makes a stream of `device` wait for copies back. Null: blocks until they are done.
  void order(const cuda::Device& device, cuda::Handle stream) const;
  void synchronize();
  // Once this returns, no gradient's memory is accessed any more: all copies are done, or the device is lost.
  void settle() noexcept;
  // Called when the layout changes; nothing may be in flight.
  void forget_buffers();

  const cuda::Device& device() const { return *device_; }

 private:
  struct Copy {
    cuda::Address from;
    std::byte* to;
    std::size_t bytes;
  };
  struct Gathered {
    std::vector<std::size_t> indices;
    std::vector<Copy> copies;
  };
  struct Sent {
    std::vector<std::size_t> indices;
    cuda::Event event;
  };

  void receive();

  const cuda::DevicePointer device_;
  const Arrived arrived_;
  const cuda::Stream loading_;
  const cuda::Stream storing_;
  bool has_stored_ = false;  // since synchronize()

  Mutex mutex_;  // the driver is called under it, to keep the order in a stream
  Condition changed_;
  std::map<std::size_t, cuda::Memory> fused_ SMDP_GUARDED_BY(mutex_);  // by number of the buffer
  std::map<std::size_t, Gathered> gathered_ SMDP_GUARDED_BY(mutex_);   // by number of the buffer
  std::deque<Sent> sent_ SMDP_GUARDED_BY(mutex_);
  bool is_closing_ SMDP_GUARDED_BY(mutex_) = false;
  std::thread receiver_;
};

}  // namespace smdp
