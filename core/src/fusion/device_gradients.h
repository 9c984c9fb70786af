// The gradients of one reducer on all of its CUDA devices.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "fusion/device_staging.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// Thread safety: flush() and settle() may run beside any other function except at(); the others one at a time.
class DeviceGradients {
 public:
  explicit DeviceGradients(DeviceStaging::Arrived arrived) : arrived_(std::move(arrived)) {}
  DeviceGradients(const DeviceGradients&) = delete;
  DeviceGradients& operator=(const DeviceGradients&) = delete;
  ~DeviceGradients() {
    for (auto& [_, staging] : stagings_) {
      if (staging->device().is_inherited())
        staging.release();  // its thread exists only in the parent, so joining it
                            // would never end
    }
  }

  // Throws InvalidArgument if the device does not exist, and Error without a driver.
  DeviceStaging& at(int device) {
    const auto found = stagings_.find(device);
    if (found != stagings_.end()) return *found->second;
    return *stagings_.emplace(device, std::make_unique<DeviceStaging>(device, arrived_)).first->second;
  }

  void flush(std::size_t buffer) {
    for (const auto& [_, staging] : stagings_) staging->flush(buffer);
  }

  // Makes `stream` wait for the copies back or, if it is null, this thread.
  void order(const CudaStream* stream) {
    for (const auto& [_, staging] : stagings_) {
      if (stream == nullptr) {
        staging->synchronize();
      } else {
        staging->order(at(stream->device).device(), stream->stream);
      }
    }
  }

  // Once this returns, no gradient's memory is accessed any more.
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
