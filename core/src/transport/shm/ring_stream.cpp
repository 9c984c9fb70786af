#include "transport/shm/ring_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/shm/doorbell.h"

namespace smdp {

RingStream::RingStream(std::shared_ptr<Segment> segment, std::size_t me, std::size_t peer, int peer_eventfd)
    : segment_(std::move(segment)), me_(me), peer_(peer), peer_eventfd_(peer_eventfd) {}

std::size_t RingStream::write(std::span<const std::byte> data) {
  RingIndex& index = segment_->ring_index(me_, peer_);
  std::byte* ring = segment_->ring(me_, peer_);
  const std::uint64_t written = index.written.load(std::memory_order_relaxed);
  const std::size_t room = Segment::kRingBytes - static_cast<std::size_t>(written - index.read.load());
  const std::size_t n = std::min(room, data.size());
  if (n == 0) return 0;
  const std::size_t at = written % Segment::kRingBytes;
  const std::size_t first = std::min(n, Segment::kRingBytes - at);
  std::memcpy(ring + at, data.data(), first);
  std::memcpy(ring, data.data() + first, n - first);
  index.written.store(written + n);
  ring_doorbell(segment_->flags(peer_).mail_sleep, peer_eventfd_);
  return n;
}

std::size_t RingStream::read(std::span<std::byte> data) {
  RingIndex& index = segment_->ring_index(peer_, me_);
  const std::byte* ring = segment_->ring(peer_, me_);
  const std::uint64_t read = index.read.load(std::memory_order_relaxed);
  const std::size_t available = static_cast<std::size_t>(index.written.load() - read);
  const std::size_t n = std::min(available, data.size());
  if (n == 0) return 0;
  const std::size_t at = read % Segment::kRingBytes;
  const std::size_t first = std::min(n, Segment::kRingBytes - at);
  std::memcpy(data.data(), ring + at, first);
  std::memcpy(data.data() + first, ring, n - first);
  index.read.store(read + n);
  ring_doorbell(segment_->flags(peer_).mail_sleep, peer_eventfd_);
  return n;
}

}  // namespace smdp
