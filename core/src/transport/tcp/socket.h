// TCP sockets, and what local ones have in common with them: addresses, listening, connecting, and blocking transfers
// with a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/file_descriptor.h"
#include "smdp/error.h"

namespace smdp {

using Deadline = std::chrono::steady_clock::time_point;

// Asked now and then by what waits: true ends it with ClosedError (Ctrl-C). May be empty.
using Interrupted = std::function<bool()>;

// The other side closed a connection, or its process ended.
class ConnectionEnded : public Error {
 public:
  using Error::Error;
};

// All below throw ShortageError where a limit or a sandbox does not let them.

// Listens on a numeric address (empty: all addresses); port 0 takes a free one. Throws Error.
FileDescriptor listen_on(const std::string& host, std::uint16_t port);
std::uint16_t local_port(const FileDescriptor& socket);

// Tries all addresses of a name, again and again while they refuse, until the deadline. source: numeric address to
// connect from; empty leaves it to the routing table. patience: for how long they may refuse, where somebody has
// listened before. Throws TimeoutError, and Error when the patience is over.
FileDescriptor connect_to(const std::string& host, std::uint16_t port, Deadline deadline,
                          const std::string& source = "", const Interrupted& interrupted = {},
                          std::optional<std::chrono::milliseconds> patience = std::nullopt);
// From whichever listener somebody calls first. Empty descriptor when the deadline passes, or `wake`, an eventfd, is
// set.
FileDescriptor accept_from(std::span<const FileDescriptor> listeners, Deadline deadline, int wake = -1);

// Numeric addresses of a connection's ends.
std::string local_address(const FileDescriptor& socket);
std::string peer_address(const FileDescriptor& socket);
// First numeric address of a name; empty if it has none.
std::string resolve(const std::string& host);
// The address this machine would use to talk to `host`, without sending anything; empty if there is no route.
std::string route_to(const std::string& host);
// Addresses of the interfaces that `names` admits, in NCCL's spelling. "eth,ib" are prefixes, "=eth0,eth1" exact names:
// each gives its first interface, so several names are several rails. "^lo,docker" gives the first that has none of the
// prefixes. Throws ConfigError, which lists the interfaces.
std::vector<std::string> addresses_of_interfaces(const std::string& names);
bool is_loopback(const std::string& address);

void set_no_delay(const FileDescriptor& socket);
// A dead peer or link is found within idle + interval x count seconds. Only for connections that are mostly idle.
void set_keepalive(const FileDescriptor& socket, int idle_s, int interval_s, int count);
// True while a keepalive probe has no answer. Data sent now would put off keepalive's verdict.
bool is_probed(const FileDescriptor& socket);

// All bytes or an exception: TimeoutError at the deadline, ConnectionEnded when the other side closes.
void send_all(int socket, const void* data, std::size_t size, Deadline deadline, const Interrupted& interrupted = {});
void recv_all(int socket, void* data, std::size_t size, Deadline deadline, const Interrupted& interrupted = {});

}  // namespace smdp
