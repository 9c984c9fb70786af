#include "device/cuda_device.h"

#include <string>
#include <utility>

#include "smdp/error.h"

namespace smdp::cuda {
namespace {

constexpr unsigned kBesideDefault = 1;       // CU_STREAM_NON_BLOCKING
constexpr unsigned kAsleepWithoutTimes = 3;  // CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
constexpr unsigned kForAllContexts = 1;      // CU_MEMHOSTREGISTER_PORTABLE

constexpr int kInvalidDevice = 101;  // CUDA_ERROR_INVALID_DEVICE

// Frees memory in its context; for destructors, which must not throw.
void free_in(const Device& device, int (*free)(Handle), Handle what) noexcept {
  if (what == nullptr || device.is_inherited()) return;
  try {
    const Device::Current current(device);
    free(what);
  } catch (const Error&) {
  }
}

}  // namespace

Device::Device(int number) : driver_(Driver::instance()) {
  const int result = number < 0 ? kInvalidDevice : driver_.get_device(&device_, number);
  if (result == kInvalidDevice) {
    throw InvalidArgument("[smdp] there is no CUDA device " + std::to_string(number) +
                          ". CUDA_VISIBLE_DEVICES determines which devices this process sees, counted from 0.");
  }
  driver_.check(result, "cuDeviceGet");
  driver_.check(driver_.retain_context(&context_, device_), "cuDevicePrimaryCtxRetain");
}

Device::~Device() {
  if (context_ != nullptr && !is_inherited()) driver_.release_context(device_);
}

Device::Current::Current(const Device& device) : driver_(device.driver_) {
  driver_.check(driver_.push_context(device.context_), "cuCtxPushCurrent");
}

Device::Current::~Current() {
  Handle popped = nullptr;
  driver_.pop_context(&popped);
}

Event::Event(DevicePointer device, Handle stream) : device_(std::move(device)) {
  const Device::Current current(*device_);
  const Driver& driver = device_->driver();
  driver.check(driver.create_event(&handle_, kAsleepWithoutTimes), "cuEventCreate");
  if (const int result = driver.record_event(handle_, stream)) {
    driver.destroy_event(std::exchange(handle_, nullptr));
    driver.check(result, "cuEventRecord");
  }
}

Event::Event(Event&& other) noexcept
    : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}

Event::~Event() {
  if (device_) free_in(*device_, device_->driver().destroy_event, handle_);
}

void Event::synchronize() const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().synchronize_event(handle_), "cuEventSynchronize");
}

Stream::Stream(DevicePointer device) : device_(std::move(device)) {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().create_stream(&handle_, kBesideDefault), "cuStreamCreate");
}

Stream::~Stream() { free_in(*device_, device_->driver().destroy_stream, handle_); }

void Stream::wait(Handle event) const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().wait_in_stream(handle_, event, 0), "cuStreamWaitEvent");
}

// cuStreamSynchronize would spin.
void Stream::synchronize() const { record().synchronize(); }

void Stream::copy_within(Address to, Address from, std::size_t bytes) const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().copy_within(to, from, bytes, handle_), "cuMemcpyDtoDAsync");
}

void Stream::copy_to_host(std::byte* to, Address from, std::size_t bytes) const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().copy_to_host(to, from, bytes, handle_), "cuMemcpyDtoHAsync");
}

void Stream::copy_to_device(Address to, const std::byte* from, std::size_t bytes) const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().copy_to_device(to, from, bytes, handle_), "cuMemcpyHtoDAsync");
}

void Stream::clear(Address memory, std::size_t bytes) const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().clear(memory, 0, bytes, handle_), "cuMemsetD8Async");
}

Memory::Memory(DevicePointer device, std::size_t bytes) : device_(std::move(device)) {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().allocate(&address_, bytes), "cuMemAlloc");
}

Memory::Memory(Memory&& other) noexcept
    : device_(std::move(other.device_)), address_(std::exchange(other.address_, 0)) {}

Memory::~Memory() {
  if (!device_ || address_ == 0 || device_->is_inherited()) return;
  try {
    const Device::Current current(*device_);
    device_->driver().free(address_);
  } catch (const Error&) {
  }
}

std::shared_ptr<void> pin(DevicePointer device, std::byte* memory, std::size_t bytes) {
  const Device::Current current(*device);
  const Driver& driver = device->driver();
  driver.check(driver.pin(memory, bytes, kForAllContexts), "cuMemHostRegister");
  return {memory, [device = std::move(device)](void* pinned) {
            if (device->is_inherited()) return;
            try {
              const Device::Current scope(*device);
              device->driver().unpin(pinned);
            } catch (const Error&) {
            }
          }};
}

void wait_in_stream(const Device& device, Handle stream, const Event& event) {
  const Device::Current current(device);
  device.driver().check(device.driver().wait_in_stream(stream, event.handle(), 0), "cuStreamWaitEvent");
}

}  // namespace smdp::cuda
