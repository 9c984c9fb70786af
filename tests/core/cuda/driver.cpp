// Stands in for CUDA's driver where there is no GPU: memory that the CPU may not touch, streams that run late and in
// threads of their own, events; the host's memory must be pinned. As strict as a device, not as fast.
#include "cuda/driver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kIllegalAddress = 700;

using Address = unsigned long long;

struct Event {
  std::uint64_t asked = 0;  // how often it was recorded
  std::uint64_t reached = 0;
};

// One lock for all: what is tested is the order of things.
std::mutex mutex;
std::condition_variable changed;
thread_local std::vector<void*> contexts_pushed;
bool has_context() { return !contexts_pushed.empty(); }

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      is_closing_ = true;
    }
    changed.notify_all();
    thread_.join();
  }

  // Under the lock, as all below.
  void add(std::function<void(std::unique_lock<std::mutex>&)> work) {
    work_.push_back(std::move(work));
    changed.notify_all();
  }
  bool is_idle() const { return work_.empty() && !is_busy_; }

 private:
  void run() {
    std::minstd_rand random(7);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return is_closing_ || !work_.empty(); });
      if (work_.empty()) return;
      const auto work = std::move(work_.front());
      work_.pop_front();
      is_busy_ = true;
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      lock.lock();
      work(lock);
      is_busy_ = false;
      changed.notify_all();
    }
  }

  std::deque<std::function<void(std::unique_lock<std::mutex>&)>> work_;
  bool is_busy_ = false;
  bool is_closing_ = false;
  std::thread thread_;
};

struct Region {
  std::size_t bytes;
  std::byte* behind;  // where the CPU reaches it
};

std::map<Address, Region> memory;          // of devices
std::map<std::byte*, std::size_t> pinned;  // of the host
std::map<Stream*, std::shared_ptr<Stream>> streams;
std::map<Event*, std::shared_ptr<Event>> events;
int contexts = 0;
StandInCopies copies;
StandInFailure failing = StandInFailure::kNone;
int failure = 0;

std::byte* behind(Address address, std::size_t bytes) {
  auto found = memory.upper_bound(address);
  if (found == memory.begin()) return nullptr;
  --found;
  const std::size_t offset = address - found->first;
  return offset + bytes <= found->second.bytes ? found->second.behind + offset : nullptr;
}

bool is_pinned(const void* data, std::size_t bytes) {
  auto* first = static_cast<std::byte*>(const_cast<void*>(data));
  auto found = pinned.upper_bound(first);
  if (found == pinned.begin()) return false;
  --found;
  return first + bytes <= found->first + found->second;
}

std::shared_ptr<Stream> stream_of(void* handle) {
  if (handle == nullptr) {
    static const auto usual = new std::shared_ptr<Stream>(std::make_shared<Stream>());  // outlives main
    return *usual;
  }
  const auto found = streams.find(static_cast<Stream*>(handle));
  return found == streams.end() ? nullptr : found->second;
}

std::shared_ptr<Event> event_of(void* handle) {
  const auto found = events.find(static_cast<Event*>(handle));
  return found == events.end() ? nullptr : found->second;
}

int copy_in(void* handle, int& counter, std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto stream = stream_of(handle);
  if (!has_context()) return kInvalidContext;
  if (failure != 0) return failure;
  if (stream == nullptr || to == nullptr || from == nullptr) return kInvalidValue;
  ++counter;
  stream->add([to, from, bytes](std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::memcpy(to, from, bytes);
    lock.lock();
  });
  return 0;
}

}  // namespace

extern "C" {

void stand_in_fail(StandInFailure how) {
  const std::lock_guard lock(mutex);
  failing = how;
  failure = 0;
}

StandInCopies stand_in_copies() {
  const std::lock_guard lock(mutex);
  return std::exchange(copies, {});
}

int stand_in_busy() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(
      std::count_if(streams.begin(), streams.end(), [](const auto& one) { return !one.second->is_idle(); }));
}

int stand_in_left() {
  const std::lock_guard lock(mutex);
  return contexts + static_cast<int>(streams.size() + events.size() + memory.size() + pinned.size());
}

int cuInit(unsigned) { return 0; }

int cuDeviceGet(int* device, int number) {
  if (number > 1) return 101;
  *device = number;
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard lock(mutex);
  ++contexts;
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(device) + 1);
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int) {
  const std::lock_guard lock(mutex);
  --contexts;
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  contexts_pushed.push_back(context);
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  if (!has_context()) return kInvalidContext;
  *context = contexts_pushed.back();
  contexts_pushed.pop_back();
  return 0;
}

int cuStreamCreate(void** made, unsigned) {
  if (!has_context()) return kInvalidContext;
  auto stream = std::make_shared<Stream>();
  const std::lock_guard lock(mutex);
  *made = stream.get();
  streams[stream.get()] = stream;
  return 0;
}

int cuStreamDestroy_v2(void* handle) {
  std::shared_ptr<Stream> last;  // ends without the lock, once all that it holds has run
  const std::lock_guard lock(mutex);
  const auto found = streams.find(static_cast<Stream*>(handle));
  if (found == streams.end()) return kInvalidValue;
  last = std::move(found->second);
  streams.erase(found);
  return 0;
}

int cuStreamWaitEvent(void* handle, void* awaited, unsigned) {
  const std::lock_guard lock(mutex);
  const auto stream = stream_of(handle);
  const auto event = event_of(awaited);
  if (!has_context()) return kInvalidContext;
  if (stream == nullptr || event == nullptr) return kInvalidValue;
  stream->add([event, number = event->asked](std::unique_lock<std::mutex>& held) {
    changed.wait(held, [&] { return event->reached >= number; });
  });
  return 0;
}

int cuEventCreate(void** made, unsigned) {
  if (!has_context()) return kInvalidContext;
  const std::lock_guard lock(mutex);
  auto event = std::make_shared<Event>();
  *made = event.get();
  events[event.get()] = event;
  return 0;
}

int cuEventDestroy_v2(void* handle) {
  const std::lock_guard lock(mutex);
  return events.erase(static_cast<Event*>(handle)) == 1 ? 0 : kInvalidValue;
}

int cuEventRecord(void* handle, void* in) {
  const std::lock_guard lock(mutex);
  const auto event = event_of(handle);
  const auto stream = stream_of(in);
  if (stream == nullptr || event == nullptr) return kInvalidValue;
  const std::uint64_t number = ++event->asked;
  stream->add([event, number](std::unique_lock<std::mutex>&) { event->reached = number; });
  return 0;
}

int cuEventSynchronize(void* handle) {
  std::unique_lock lock(mutex);
  const auto event = event_of(handle);
  if (event == nullptr) return kInvalidValue;
  changed.wait(lock, [&, number = event->asked] { return event->reached >= number; });
  return failure;
}

int cuMemAlloc_v2(Address* made, std::size_t bytes) {
  if (!has_context()) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  const int file = ::memfd_create("device", 0);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) return 2;
  void* front = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
  void* back = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  const std::lock_guard lock(mutex);
  *made = reinterpret_cast<std::uintptr_t>(front);
  memory[*made] = {bytes, static_cast<std::byte*>(back)};
  return 0;
}

int cuMemFree_v2(Address address) {
  std::unique_lock lock(mutex);
  const auto found = memory.find(address);
  if (found == memory.end()) return kInvalidValue;
  // As the driver: after all that is under way.
  changed.wait(lock, [] {
    for (const auto& [_, stream] : streams) {
      if (!stream->is_idle()) return false;
    }
    return true;
  });
  ::munmap(reinterpret_cast<void*>(address), found->second.bytes);
  ::munmap(found->second.behind, found->second.bytes);
  memory.erase(found);
  return 0;
}

int cuMemsetD8Async(Address address, unsigned char value, std::size_t bytes, void* handle) {
  const std::lock_guard lock(mutex);
  const auto stream = stream_of(handle);
  std::byte* to = behind(address, bytes);
  if (!has_context()) return kInvalidContext;
  if (stream == nullptr || to == nullptr) return kInvalidValue;
  stream->add([to, value, bytes](std::unique_lock<std::mutex>&) { std::memset(to, value, bytes); });
  return 0;
}

int cuMemHostRegister_v2(void* data, std::size_t bytes, unsigned) {
  if (!has_context()) return kInvalidContext;
  const std::lock_guard lock(mutex);
  if (bytes == 0 || is_pinned(data, 1)) return 712;
  pinned[static_cast<std::byte*>(data)] = bytes;
  return 0;
}

int cuMemHostUnregister(void* data) {
  const std::lock_guard lock(mutex);
  return pinned.erase(static_cast<std::byte*>(data)) == 1 ? 0 : 713;
}

int cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, void* handle) {
  const std::lock_guard lock(mutex);
  return copy_in(handle, copies.within, behind(to, bytes), behind(from, bytes), bytes);
}

int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void* handle) {
  const std::lock_guard lock(mutex);
  if (!is_pinned(to, bytes)) return kInvalidValue;
  if (failing == StandInFailure::kAtOnce) failure = kIllegalAddress;
  if (failing == StandInFailure::kWhileItRuns) {
    stream_of(handle)->add([](std::unique_lock<std::mutex>&) { failure = kIllegalAddress; });
    return 0;
  }
  return copy_in(handle, copies.to_host, static_cast<std::byte*>(to), behind(from, bytes), bytes);
}

int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void* handle) {
  const std::lock_guard lock(mutex);
  if (!is_pinned(from, bytes)) return kInvalidValue;
  if (failing == StandInFailure::kOnTheWayBack) failure = kIllegalAddress;
  return copy_in(handle, copies.to_device, behind(to, bytes), static_cast<const std::byte*>(from), bytes);
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
}
