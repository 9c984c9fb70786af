// ByteStream through shared memory: one ring per direction (see segment.h). The peer's doorbell wakes the reader.
#pragma once

#include <memory>

#include "transport/byte_stream.h"
#include "transport/shm/segment.h"

namespace smdp {

class RingStream final : public ByteStream {
 public:
  // peer_eventfd: doorbell of the other side.
  RingStream(std::shared_ptr<Segment> segment, std::size_t me, std::size_t peer, int peer_eventfd);

  std::size_t write(std::span<const std::byte> data) override;
  std::size_t read(std::span<std::byte> data) override;
  void want_room(bool) override {}  // the reader always rings

 private:
  std::shared_ptr<Segment> segment_;
  std::size_t me_;
  std::size_t peer_;
  int peer_eventfd_;
};

}  // namespace smdp
