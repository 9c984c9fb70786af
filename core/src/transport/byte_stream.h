// A reliable stream of bytes to one rank, never blocking: a ring in shared memory or a TCP socket.
#pragma once

#include <cstddef>
#include <span>

namespace smdp {

class ByteStream {
 public:
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  // Bytes taken, 0 if there is no room (or no byte) now. Throws Error when the stream has ended.
  virtual std::size_t write(std::span<const std::byte> data) = 0;
  virtual std::size_t read(std::span<std::byte> data) = 0;
  // There is something to write: have the thread woken when there is room (again).
  virtual void want_room(bool wanted) = 0;
};

}  // namespace smdp
