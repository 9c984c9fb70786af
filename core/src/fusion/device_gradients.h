// Gradients of one reducer on all of its CUDA devices.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "fusion/device_staging.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// Thread safety: flush() and settle() beside all but at(), the rest by one at a time.
class DeviceGradients {
 public:
  explicit DeviceGradients(DeviceStaging::Arrived arrived) : arrived_(std::move(arrived)) {}
  DeviceGradients(const DeviceGradients&) = delete;
  DeviceGradients& operator=(const DeviceGradients&) = delete;
  ~DeviceGradients() {
    for (auto& [_, staging] : stagings_) {
      if (staging->device().is_inherited()) staging.release();  // its thread waits in the parent, and so would we
    }
  }

  // Throws InvalidArgument for a device that is not there, Error without a driver.
  DeviceStaging& at(int device) {
    const auto found = stagings_.find(device);
    if (found != stagings_.end()) return *found->second;
    return *stagings_.emplace(device, std::make_unique<DeviceStaging>(device, arrived_)).first->second;
  }

  void flush(std::size_t buffer) {
    for (const auto& [_, staging] : stagings_) staging->flush(buffer);
  }

  // What is copied back: `stream` waits for it, or, null, this thread.
  void order(const CudaStream* stream) {
    for (const auto& [_, staging] : stagings_) {
      if (stream == nullptr) {
        staging->synchronize();
      } else {
        staging->order(at(stream->device).device(), stream->stream);
      }
    }
  }

  // Once this returns, no memory of a gradient is touched any more.
  void settle() noexcept {
    for (const auto& [_, staging] : stagings_) staging->settle();
  }

  void forget_buffers() {
    for (const auto& [_, staging] : stagings_) staging->forget_buffers();
  }

 private:
  const DeviceStaging::Arrived arrived_;
  std::map<int, std::unique_ptr<DeviceStaging>> stagings_;
};

}  // namespace smdp
