// One CUDA device: streams, events, memory and copies, each freed by its destructor.
//
// Thread safety: everything except construction and destruction may be called from any thread. All functions throw
// Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/fork_guard.h"
#include "device/cuda_driver.h"

namespace smdp::cuda {

class Device {
 public:
  // Uses the same context as frameworks. Throws Error if there is no driver or no such device.
  explicit Device(int number);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  // Makes the device's context current in this thread during its lifetime.
  class Current {
   public:
    explicit Current(const Device& device);
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current();

   private:
    const Driver& driver_;
  };

  const Driver& driver() const { return driver_; }
  // Returns whether this is a forked child, in which CUDA must not be used.
  bool is_inherited() const { return ForkGuard::in_forked_child(fork_generation_); }

 private:
  const Driver& driver_;
  int device_ = 0;
  Handle context_ = nullptr;
  const std::uint64_t fork_generation_ = ForkGuard::generation();
};

using DevicePointer = std::shared_ptr<const Device>;

// A point in a stream.
class Event {
 public:
  Event(DevicePointer device, Handle stream);
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  ~Event();

  // Blocks, sleeping, until the device has reached the event.
  void synchronize() const;
  Handle handle() const { return handle_; }

 private:
  DevicePointer device_;
  Handle handle_ = nullptr;
};

// A sequence of operations on the device, concurrent with other streams including the default one.
class Stream {
 public:
  explicit Stream(DevicePointer device);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  // Makes later operations of this stream wait for `event`, of any device.
  void wait(Handle event) const;
  Event record() const { return {device_, handle_}; }
  void synchronize() const;

  // Copies within the device, and between the device and pinned host memory.
  void copy_within(Address to, Address from, std::size_t bytes) const;
  void copy_to_host(std::byte* to, Address from, std::size_t bytes) const;
  void copy_to_device(Address to, const std::byte* from, std::size_t bytes) const;
  void clear(Address memory, std::size_t bytes) const;

 private:
  DevicePointer device_;
  Handle handle_ = nullptr;
};

// Memory of a device.
class Memory {
 public:
  Memory(DevicePointer device, std::size_t bytes);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&&) = delete;
  ~Memory();

  Address address() const { return address_; }

 private:
  DevicePointer device_;
  Address address_ = 0;
};

// Pins host memory for all devices, as long as the result lives. bytes: above 0.
std::shared_ptr<void> pin(DevicePointer device, std::byte* memory, std::size_t bytes);

// Makes a framework's stream, null for its default one, wait for `event`.
void wait_in_stream(const Device& device, Handle stream, const Event& event);

}  // namespace smdp::cuda
