// ByteStream over a TCP socket.
#pragma once

#include <functional>

#include "common/file_descriptor.h"
#include "transport/byte_stream.h"
#include "transport/progress.h"

namespace smdp {

class SocketStream final : public ByteStream {
 public:
  // on_ready: called when the socket has bytes or room, on the progress thread, which also makes and destroys the
  // stream.
  SocketStream(Progress& progress, FileDescriptor socket, std::function<void()> on_ready);
  ~SocketStream() override;

  std::size_t write(std::span<const std::byte> data) override;
  std::size_t read(std::span<std::byte> data) override;
  void want_room(bool wanted) override;

 private:
  Progress& progress_;
  FileDescriptor socket_;
  bool wanted_ = false;
};

}  // namespace smdp
