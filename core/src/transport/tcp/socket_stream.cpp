#include "transport/tcp/socket_stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "common/shortage.h"

namespace smdp {
namespace {

constexpr char kPurpose[] = "a message";

}  // namespace

SocketStream::SocketStream(Progress& progress, FileDescriptor socket, std::function<void()> on_ready)
    : progress_(progress), socket_(std::move(socket)) {
  progress_.add(socket_.get(), EPOLLIN, [on_ready = std::move(on_ready)](std::uint32_t) { on_ready(); });
}

SocketStream::~SocketStream() { progress_.remove(socket_.get()); }

std::size_t SocketStream::write(std::span<const std::byte> data) {
  for (;;) {
    const ssize_t written = ::send(socket_.get(), data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written >= 0) return static_cast<std::size_t>(written);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    throw_if_short("send", kPurpose);
    throw Error(std::strerror(errno));
  }
}

std::size_t SocketStream::read(std::span<std::byte> data) {
  for (;;) {
    const ssize_t got = ::recv(socket_.get(), data.data(), data.size(), MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) throw Error("connection closed");
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    throw_if_short("recv", kPurpose);
    throw Error(std::strerror(errno));
  }
}

void SocketStream::want_room(bool wanted) {
  if (wanted == wanted_) return;
  wanted_ = wanted;
  progress_.modify(socket_.get(),
                   wanted ? static_cast<std::uint32_t>(EPOLLIN | EPOLLOUT) : static_cast<std::uint32_t>(EPOLLIN));
}

}  // namespace smdp
