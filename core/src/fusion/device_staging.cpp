#include "fusion/device_staging.h"

#include <algorithm>
#include <utility>

#include "common/service_thread.h"

namespace smdp {
namespace {

cuda::Address address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

}  // namespace

DeviceStaging::DeviceStaging(int device, Arrived arrived)
    : device_(std::make_shared<const cuda::Device>(device)),
      arrived_(std::move(arrived)),
      loading_(device_),
      storing_(device_),
      receiver_(service_thread("smdp device", [this] { receive(); })) {}

DeviceStaging::~DeviceStaging() {
  {
    const Lock lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  receiver_.join();
  settle();
}

void DeviceStaging::pin(FusionBuffer& buffer) const {
  if (buffer.plan.count == 0 || buffer.pinned) return;
  buffer.pinned = cuda::pin(device_, buffer.memory.get(), buffer.plan.count * size_of(buffer.plan.dtype));
}

void DeviceStaging::gather(std::size_t number, const FusionBuffer& buffer, const Piece& piece, const void* data,
                           cuda::Handle event) {
  const Lock lock(mutex_);
  if (event != nullptr) loading_.wait(event);
  Gathered& gathered = gathered_[number];
  gathered.indices.push_back(piece.index);
  const std::size_t element = size_of(piece.gradient.dtype);
  const std::size_t own = piece.gradient.count * element;
  if (own == 0) return;
  if (buffer.plan.is_alone) {
    gathered.copies.push_back({address_of(data), buffer.memory.get(), own});
    return;
  }
  auto fused = fused_.find(number);
  if (fused == fused_.end()) {
    const std::size_t bytes = buffer.plan.count * element;
    fused = fused_.emplace(number, cuda::Memory(device_, bytes)).first;
    loading_.clear(fused->second.address(), bytes);  // gaps stay zero
  }
  const cuda::Address place = fused->second.address() + piece.offset * element;
  loading_.copy_within(place, address_of(data), own);
  // Includes the gap behind it, so that neighbors are copied at once.
  gathered.copies.push_back({place, buffer.place(piece.offset), place_size(piece.gradient) * element});
}

void DeviceStaging::flush(std::size_t number) {
  const Lock lock(mutex_);
  const auto found = gathered_.find(number);
  if (found == gathered_.end()) return;
  Gathered gathered = std::move(found->second);
  gathered_.erase(found);
  std::sort(gathered.copies.begin(), gathered.copies.end(),
            [](const Copy& left, const Copy& right) { return left.to < right.to; });
  for (std::size_t i = 0; i < gathered.copies.size();) {
    Copy run = gathered.copies[i++];
    for (; i < gathered.copies.size() && gathered.copies[i].to == run.to + run.bytes; ++i) {
      run.bytes += gathered.copies[i].bytes;
    }
    loading_.copy_to_host(run.to, run.from, run.bytes);
  }
  sent_.push_back({std::move(gathered.indices), loading_.record()});
  changed_.notify_all();
}

void DeviceStaging::receive() {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this]() SMDP_REQUIRES(mutex_) { return is_closing_ || !sent_.empty(); });
    if (is_closing_) return;
    const Sent sent = std::move(sent_.front());
    sent_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      sent.event.synchronize();
    } catch (...) {
      error = std::current_exception();
    }
    arrived_(sent.indices, error);
    lock.lock();
  }
}

void DeviceStaging::store(void* data, const std::byte* from, const Gradient& gradient) {
  if (gradient.count == 0) return;
  has_stored_ = true;
  storing_.copy_to_device(address_of(data), from, gradient.count * size_of(gradient.dtype));
}

void DeviceStaging::order(const cuda::Device& device, cuda::Handle stream) const {
  if (has_stored_) cuda::wait_in_stream(device, stream, storing_.record());
}

void DeviceStaging::synchronize() {
  if (has_stored_) storing_.synchronize();
  has_stored_ = false;
}

void DeviceStaging::settle() noexcept {
  for (const cuda::Stream* stream : {&loading_, &storing_}) {
    try {
      stream->synchronize();
    } catch (const std::exception&) {  // the device is lost, and nothing is in flight
    }
  }
}

void DeviceStaging::forget_buffers() {
  const Lock lock(mutex_);
  fused_.clear();
}

}  // namespace smdp
