// Gradients on one CUDA device, on their way to fusion buffers in pinned memory of the host and back: gathered on the
// device, copied to the host once per buffer and run of neighbours, on streams of their own.
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

// Thread safety: gather(), flush() and settle() may be called by several threads, the rest by one at a time, not beside
// destruction, which no forked child may ask for.
class DeviceStaging {
 public:
  // Gradients that have come to their places in host memory, or why they never will. Called by a thread of this object.
  using Arrived = std::function<void(const std::vector<std::size_t>& indices, const std::exception_ptr& error)>;

  // Throws InvalidArgument for a device that is not there, Error without a driver.
  DeviceStaging(int device, Arrived arrived);
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;
  // Waits for copies under way; tells nobody of them any more.
  ~DeviceStaging();

  // Pins the memory of a buffer, before anything of it is gathered.
  void pin(FusionBuffer& buffer) const;

  struct Piece {
    std::size_t index;  // of the gradient
    const Gradient& gradient;
    std::size_t offset;  // elements, of its place in the buffer
  };
  // Gradient `piece` lies at `data` of this device, complete after `event` (null: now). number: of the buffer.
  void gather(std::size_t number, const FusionBuffer& buffer, const Piece& piece, const void* data, cuda::Handle event);
  // All that is to come of a buffer has been gathered: sends it.
  void flush(std::size_t number);

  // Copies back. The memory that it comes from must not change before synchronize().
  void store(void* data, const std::byte* from, const Gradient& gradient);
  // Lets a stream, of `device`, wait for what is copied back. Without: blocks until it has been.
  void order(const cuda::Device& device, cuda::Handle stream) const;
  void synchronize();
  // Once this returns, no memory of a gradient is touched any more: all copies are over, or the device is lost.
  void settle() noexcept;
  // The layout changes: nothing may be under way.
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

  Mutex mutex_;  // the driver is called under it, for its order in a stream
  Condition changed_;
  std::map<std::size_t, cuda::Memory> fused_ SMDP_GUARDED_BY(mutex_);  // by number of the buffer
  std::map<std::size_t, Gathered> gathered_ SMDP_GUARDED_BY(mutex_);   // as above
  std::deque<Sent> sent_ SMDP_GUARDED_BY(mutex_);
  bool is_closing_ SMDP_GUARDED_BY(mutex_) = false;
  std::thread receiver_;
};

}  // namespace smdp
