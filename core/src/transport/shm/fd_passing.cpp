#include "transport/shm/fd_passing.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "common/shortage.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

constexpr std::size_t kPerMessage = 200;  // the kernel allows 253
constexpr char kLocalRank[] = "a rank of this host";

struct LocalAddress {
  sockaddr_un address{};
  socklen_t length;

  explicit LocalAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t n = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), n);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

bool wait_readable(int descriptor, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd request{descriptor, POLLIN, 0};
    const int ready = ::poll(&request, 1, static_cast<int>(std::min<long>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw shortage("poll", kLocalRank, errno);
  }
}

}  // namespace

FileDescriptor listen_local(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const LocalAddress address(name);
  if (socket.get() < 0) throw shortage("socket", kLocalRank, errno);
  if (::bind(socket.get(), address.get(), address.length) != 0) throw shortage("bind", kLocalRank, errno);
  if (::listen(socket.get(), 128) != 0) throw shortage("listen", kLocalRank, errno);
  return socket;
}

FileDescriptor connect_local(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const LocalAddress address(name);
  if (socket.get() < 0) throw shortage("socket", kLocalRank, errno);
  if (::connect(socket.get(), address.get(), address.length) == 0) return socket;
  throw_if_short("connect", kLocalRank);
  return FileDescriptor();
}

LocalPeer local_peer(const FileDescriptor& socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
  return {peer.pid, std::to_string(peer.uid)};
}

void send_descriptors(const FileDescriptor& socket, const std::vector<int>& descriptors) {
  for (std::size_t begin = 0; begin < descriptors.size(); begin += kPerMessage) {
    const std::size_t count = std::min(kPerMessage, descriptors.size() - begin);
    std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
    char byte = 'd';
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data() + begin, count * sizeof(int));
    // Small enough for the socket's buffer, whether it blocks or not.
    if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL) != 1) {
      throw_if_short("sendmsg", kLocalRank);
      throw ConnectionEnded(std::string("[smdp] cannot pass descriptors to a local rank: ") + std::strerror(errno));
    }
  }
}

std::vector<FileDescriptor> receive_descriptors(const FileDescriptor& socket, std::size_t count,
                                                std::chrono::steady_clock::time_point deadline) {
  std::vector<FileDescriptor> received;
  while (received.size() < count) {
    if (!wait_readable(socket.get(), deadline)) throw Error("[smdp] a local rank sent no descriptors in time");
    std::vector<char> control(CMSG_SPACE(kPerMessage * sizeof(int)));
    char byte = 0;
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC) != 1) {
      throw_if_short("recvmsg", kLocalRank);
      throw ConnectionEnded("[smdp] a local rank closed the connection before passing its descriptors");
    }
    const std::size_t before = received.size();
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t got = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < got; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
        received.emplace_back(descriptor);
      }
    }
    // If this process has no room for descriptors, the kernel drops them without an error.
    if ((message.msg_flags & MSG_CTRUNC) != 0) throw shortage("recvmsg", kLocalRank, EMFILE);
    if (received.size() == before) throw Error("[smdp] a local rank sent a message without descriptors");
  }
  return received;
}

}  // namespace smdp
