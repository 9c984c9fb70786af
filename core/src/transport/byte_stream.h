// A reliable, non-blocking stream of bytes to one rank: a ring in shared memory or a TCP socket.
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

  // Return the number of bytes moved, 0 if there is no room (or no data) now. Throw Error when the stream has ended.
  virtual std::size_t write(std::span<const std::byte> data) = 0;
  virtual std::size_t read(std::span<std::byte> data) = 0;
  // Tells the stream whether data is waiting to be written, so that the thread is woken when there is room.
  virtual void want_room(bool wanted) = 0;
};

}  // namespace smdp
