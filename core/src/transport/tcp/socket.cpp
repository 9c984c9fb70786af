#include "transport/tcp/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "common/shortage.h"

namespace smdp {
namespace {

constexpr std::chrono::milliseconds kInterruptionCheck{200};

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed == 0) return Addresses(found, &::freeaddrinfo);
  const std::string purpose = "the name " + host;
  if (failed == EAI_MEMORY) throw shortage("getaddrinfo", purpose, ENOMEM);
  if (failed == EAI_SYSTEM) throw_if_short("getaddrinfo", purpose);
  // getaddrinfo() also finds no address if it could not open its files.
  const FileDescriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (probe.get() < 0) throw_if_short("socket", purpose);
  return Addresses(nullptr, &::freeaddrinfo);
}

std::string numeric(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  if (::getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  // Prefix of an IPv4 peer on a socket that serves both families.
  constexpr char kMapped[] = "::ffff:";
  const std::string text = host;
  const bool is_mapped = text.rfind(kMapped, 0) == 0 && text.find('.') != std::string::npos;
  return is_mapped ? text.substr(sizeof kMapped - 1) : text;
}

// A loopback connection to a port of the ephemeral range without a listener may connect to itself.
bool is_connected_to_itself(int socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_length = sizeof own;
  socklen_t peer_length = sizeof peer;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 && own_length == peer_length &&
         std::memcmp(&own, &peer, own_length) == 0;
}

// Returns " (address)" of the other end, for messages; empty for local sockets and connections that were reset.
std::string with_peer(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return "";
  return " (" + numeric(reinterpret_cast<sockaddr*>(&address), length) + ")";
}

int milliseconds_left(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 60'000));
}

// Returns the first descriptor that is ready, or -1 at the deadline.
int wait_for_any(std::vector<pollfd>& requests, Deadline deadline) {
  for (;;) {
    const int left = milliseconds_left(deadline);
    if (left == 0) return -1;
    const int ready = ::poll(requests.data(), requests.size(), left);
    if (ready < 0 && errno != EINTR) throw shortage("poll", "a connection", errno);
    if (ready <= 0) continue;
    for (const pollfd& request : requests) {
      if (request.revents != 0) return request.fd;
    }
  }
}

void throw_if(const Interrupted& interrupted) {
  if (interrupted && interrupted()) throw ClosedError("[smdp] the wait for another rank was interrupted.");
}

// Returns false at the deadline.
bool wait_for(int socket, short events, Deadline deadline, const Interrupted& interrupted) {
  std::vector<pollfd> request{{socket, events, 0}};
  for (;;) {
    const Deadline look = std::chrono::steady_clock::now() + kInterruptionCheck;
    if (wait_for_any(request, interrupted ? std::min(deadline, look) : deadline) >= 0) return true;
    throw_if(interrupted);
    if (!interrupted || look >= deadline) return false;
  }
}

[[noreturn]] void throw_failure(const char* call) {
  throw_if_short(call, "a connection");
  const std::string text = std::string("[smdp] a connection failed: ") + std::strerror(errno);
  if (errno == ECONNRESET || errno == EPIPE) throw ConnectionEnded(text);
  throw Error(text);
}

// call: set to the system call that failed with this error.
FileDescriptor try_connect(const addrinfo& address, const std::string& source, Deadline deadline,
                           const Interrupted& interrupted, int& error, const char*& call) {
  call = "socket";
  FileDescriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  error = errno;
  if (socket.get() < 0) return FileDescriptor();
  if (!source.empty()) {
    call = "bind";
    const Addresses own = look_up(source, 0, AI_NUMERICHOST);
    if (!own || ::bind(socket.get(), own->ai_addr, own->ai_addrlen) != 0) {
      error = own ? errno : EADDRNOTAVAIL;
      return FileDescriptor();
    }
  }
  call = "connect";
  error = ::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    const Deadline attempt = std::min(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(5));
    if (!wait_for(socket.get(), POLLOUT, attempt, interrupted)) {
      error = ETIMEDOUT;
      return FileDescriptor();
    }
    socklen_t length = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error == 0 && is_connected_to_itself(socket.get())) error = ECONNREFUSED;
  return error == 0 ? std::move(socket) : FileDescriptor();
}

struct Interface {
  std::string name;
  std::string address;  // the first IPv4 address, or else the first IPv6 address that is not link-local
};

// Returns the interfaces that are up and have an address, in the kernel's order.
std::vector<Interface> interfaces_with_address() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) throw shortage("getifaddrs", "the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> entries(raw, &::freeifaddrs);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
      if (entry->ifa_addr->sa_family != family) continue;
      const std::string name = entry->ifa_name;
      if (std::any_of(found.begin(), found.end(), [&](const Interface& one) { return one.name == name; })) continue;
      if (family == AF_INET6) {
        const auto& address = reinterpret_cast<const sockaddr_in6&>(*entry->ifa_addr);
        if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) continue;
      }
      const std::size_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      found.push_back({name, numeric(entry->ifa_addr, static_cast<socklen_t>(length))});
    }
  }
  return found;
}

}  // namespace

FileDescriptor listen_on(const std::string& host, std::uint16_t port) {
  // For all addresses: one IPv6 socket also serves IPv4; without IPv6, one socket for IPv4.
  Addresses addresses = look_up(host.empty() ? "::" : host, port, AI_PASSIVE | AI_NUMERICHOST);
  if (host.empty()) {
    const FileDescriptor probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (probe.get() < 0) addresses = look_up("", port, AI_PASSIVE | AI_NUMERICHOST);
  }
  const std::string place = (host.empty() ? "all addresses" : host) + ", port " + std::to_string(port);
  const char* call = "socket";
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    FileDescriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    const int off = 0;
    call = "socket";
    error = errno;
    if (socket.get() < 0) continue;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (host.empty() && address->ai_family == AF_INET6) {
      ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    call = "bind";
    if (::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0) {
      call = "listen";
      if (::listen(socket.get(), 1024) == 0) return socket;
    }
    error = errno;
  }
  // Only root may use a port below 1024.
  if (is_shortage(error) && error != EACCES) throw shortage(call, place, error);
  throw Error("[smdp] cannot listen on " + place + ": " + std::strerror(error));
}

std::uint16_t local_port(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

FileDescriptor connect_to(const std::string& host, std::uint16_t port, Deadline deadline, const std::string& source,
                          const Interrupted& interrupted, std::optional<std::chrono::milliseconds> patience) {
  auto pause = std::chrono::milliseconds(5);
  int error = EHOSTUNREACH;
  const char* call = "connect";
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const Addresses addresses = look_up(host, port, 0);
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      FileDescriptor socket = try_connect(*address, source, deadline, interrupted, error, call);
      if (socket.get() >= 0) {
        set_no_delay(socket);
        return socket;
      }
    }
    throw_if(interrupted);
    const std::string place = host + ", port " + std::to_string(port);
    std::optional<ShortageError> denied;
    if (is_shortage(error)) {
      const ShortageError lack = shortage(call, place, error);
      // A firewall may allow a connection later, as a Kubernetes service does once a pod is ready.
      if (!lack.is_denied() || std::string(call) != "connect") throw lack;
      denied = lack;
    }
    if (error == ECONNREFUSED && patience && std::chrono::steady_clock::now() - begin >= *patience) {
      throw Error("[smdp] no process listens at " + place + " any more.");
    }
    if (std::chrono::steady_clock::now() + pause >= deadline) {
      if (denied) throw TimeoutError(denied->what());
      throw TimeoutError("[smdp] cannot connect to " + place + ": " +
                         (addresses ? std::strerror(error) : "the name has no address") + ".");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(250));
  }
}

FileDescriptor accept_from(std::span<const FileDescriptor> listeners, Deadline deadline, int wake) {
  std::vector<pollfd> waits;
  for (const FileDescriptor& listener : listeners) waits.push_back({listener.get(), POLLIN, 0});
  if (wake >= 0) waits.push_back({wake, POLLIN, 0});
  const int ready = wait_for_any(waits, deadline);
  if (ready < 0 || ready == wake) return FileDescriptor();
  FileDescriptor socket(::accept4(ready, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0) {
    throw_if_short("accept4", "a connection from another rank");
    return socket;
  }
  set_no_delay(socket);
  return socket;
}

std::string local_address(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return numeric(reinterpret_cast<sockaddr*>(&address), length);
}

std::string peer_address(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return numeric(reinterpret_cast<sockaddr*>(&address), length);
}

std::string resolve(const std::string& host) {
  const Addresses addresses = look_up(host, 1, 0);
  return addresses ? numeric(addresses->ai_addr, addresses->ai_addrlen) : "";
}

std::string route_to(const std::string& host) {
  const Addresses addresses = look_up(host, 9, 0);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    // Connecting a datagram socket only looks up the route.
    const FileDescriptor socket(::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) throw_if_short("socket", "the route to " + host);
    if (socket.get() >= 0 && ::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0) {
      return local_address(socket);
    }
    if (errno != EACCES && errno != EPERM) throw_if_short("connect", "the route to " + host);
  }
  return "";
}

std::vector<std::string> addresses_of_interfaces(const std::string& names) {
  const bool excludes = !names.empty() && names.front() == '^';
  const bool exact = names.size() > static_cast<std::size_t>(excludes) && names[excludes ? 1 : 0] == '=';
  std::vector<std::string> wanted;
  std::istringstream list(names.substr((excludes ? 1U : 0U) + (exact ? 1U : 0U)));
  for (std::string name; std::getline(list, name, ',');) wanted.push_back(name);
  const auto fits = [exact](const std::string& name, const std::string& wish) {
    return exact ? name == wish : name.rfind(wish, 0) == 0;
  };
  const std::vector<Interface> interfaces = interfaces_with_address();
  std::vector<std::string> addresses;
  if (excludes) {
    for (const Interface& one : interfaces) {
      const bool unwanted =
          std::any_of(wanted.begin(), wanted.end(), [&](const std::string& wish) { return fits(one.name, wish); });
      if (!unwanted && addresses.empty()) addresses.push_back(one.address);
    }
  } else {
    for (const std::string& wish : wanted) {
      const auto found = std::find_if(interfaces.begin(), interfaces.end(), [&](const Interface& one) {
        return fits(one.name, wish) && std::find(addresses.begin(), addresses.end(), one.address) == addresses.end();
      });
      if (found != interfaces.end()) addresses.push_back(found->address);
    }
  }
  if (addresses.empty()) {
    std::string present;
    for (const Interface& one : interfaces) present += (present.empty() ? "" : ", ") + one.name;
    throw ConfigError("[smdp] SMDP_SOCKET_IFNAME is '" + names +
                      "', but it matches no interface with an address. Available interfaces: " + present + ".");
  }
  return addresses;
}

bool is_loopback(const std::string& address) { return address.rfind("127.", 0) == 0 || address == "::1"; }

void set_no_delay(const FileDescriptor& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void set_keepalive(const FileDescriptor& socket, int idle_s, int interval_s, int count) {
  const auto set = [&socket](int level, int option, int value) {
    if (::setsockopt(socket.get(), level, option, &value, sizeof value) != 0) {
      throw_if_short("setsockopt", "the keepalive of a control connection");
    }
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
  set(IPPROTO_TCP, TCP_KEEPCNT, count);
  // An inquiry may be unacknowledged when the link is cut, and keepalive waits for its acknowledgment. It was sent up
  // to idle_s after the cut, so the limit is that much shorter than keepalive's time.
  const unsigned int limit_ms = static_cast<unsigned int>(1000 * interval_s * count);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

bool is_probed(const FileDescriptor& socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_probes > 0;
}

void send_all(int socket, const void* data, std::size_t size, Deadline deadline, const Interrupted& interrupted) {
  const auto* from = static_cast<const std::byte*>(data);
  for (std::size_t done = 0; done < size;) {
    const ssize_t written = ::send(socket, from + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written >= 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket, POLLOUT, deadline, interrupted)) {
        throw TimeoutError("[smdp] the other side of a connection" + with_peer(socket) + " accepted no data in time.");
      }
    } else if (errno != EINTR) {
      throw_failure("send");
    }
  }
}

void recv_all(int socket, void* data, std::size_t size, Deadline deadline, const Interrupted& interrupted) {
  auto* to = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::recv(socket, to + done, size - done, MSG_DONTWAIT);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      throw ConnectionEnded("[smdp] a connection" + with_peer(socket) + " was closed by the other side.");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket, POLLIN, deadline, interrupted)) {
        throw TimeoutError("[smdp] the other side of a connection" + with_peer(socket) + " sent no data in time.");
      }
    } else if (errno != EINTR) {
      throw_failure("recv");
    }
  }
}

}  // namespace smdp
