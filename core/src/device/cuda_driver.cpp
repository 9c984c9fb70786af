#include "device/cuda_driver.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "smdp/error.h"

namespace smdp::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";  // part of the driver: no toolkit is needed

constexpr int kOutOfMemory = 2;       // CUDA_ERROR_OUT_OF_MEMORY
constexpr int kFirstOfKernels = 700;  // CUDA_ERROR_ILLEGAL_ADDRESS
constexpr int kLastOfKernels = 719;   // CUDA_ERROR_LAUNCH_FAILED

Driver load() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw Error("[smdp] the CUDA driver could not be loaded: " + std::string(why == nullptr ? kLibrary : why) +
                ". Install the NVIDIA driver, start the container with its devices (docker run --gpus all), or pass "
                "host memory.");
  }
  Driver driver{};
  const auto find = [library](auto& function, const char* name) {
    void* found = ::dlsym(library, name);
    if (found == nullptr) {
      throw Error("[smdp] the CUDA driver has no function " + std::string(name) +
                  ": it is older than CUDA 11. Update the driver.");
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find(driver.init, "cuInit");
  find(driver.get_device, "cuDeviceGet");
  find(driver.retain_context, "cuDevicePrimaryCtxRetain");
  find(driver.release_context, "cuDevicePrimaryCtxRelease_v2");
  find(driver.push_context, "cuCtxPushCurrent_v2");
  find(driver.pop_context, "cuCtxPopCurrent_v2");
  find(driver.create_stream, "cuStreamCreate");
  find(driver.destroy_stream, "cuStreamDestroy_v2");
  find(driver.wait_in_stream, "cuStreamWaitEvent");
  find(driver.create_event, "cuEventCreate");
  find(driver.destroy_event, "cuEventDestroy_v2");
  find(driver.record_event, "cuEventRecord");
  find(driver.synchronize_event, "cuEventSynchronize");
  find(driver.allocate, "cuMemAlloc_v2");
  find(driver.free, "cuMemFree_v2");
  find(driver.clear, "cuMemsetD8Async");
  find(driver.pin, "cuMemHostRegister_v2");
  find(driver.unpin, "cuMemHostUnregister");
  find(driver.copy_within, "cuMemcpyDtoDAsync_v2");
  find(driver.copy_to_host, "cuMemcpyDtoHAsync_v2");
  find(driver.copy_to_device, "cuMemcpyHtoDAsync_v2");
  find(driver.error_name, "cuGetErrorName");
  driver.check(driver.init(0), "cuInit");
  return driver;
}

}  // namespace

const Driver& Driver::instance() {
  static const Driver driver = load();  // tried again after it has thrown
  return driver;
}

void Driver::check(int result, const char* what) const {
  if (result == 0) return;
  const char* name = nullptr;
  error_name(result, &name);
  std::string cure;
  if (result >= kFirstOfKernels && result <= kLastOfKernels) {
    cure =
        " After a kernel of the program fails, every later call reports the error. Set CUDA_LAUNCH_BLOCKING=1 to find "
        "the kernel.";
  } else if (result == kOutOfMemory) {
    cure = " Fusion buffers take as much device memory as the gradients that are gathered in them.";
  }
  throw Error("[smdp] CUDA driver call " + std::string(what) + " returned " + (name == nullptr ? "error" : name) +
              " (" + std::to_string(result) + ")." + cure);
}

}  // namespace smdp::cuda
