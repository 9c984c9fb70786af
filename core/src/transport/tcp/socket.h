// TCP sockets, and what they share with local ones: addresses, listening, connecting, and blocking transfers with a
// deadline.
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

// Polled by waiting functions; when it returns true, they throw ClosedError (Ctrl-C). May be empty.
using Interrupted = std::function<bool()>;

// The other side closed a connection, or its process ended.
class ConnectionEnded : public Error {
 public:
  using Error::Error;
};

// All functions below throw ShortageError if a limit or a sandbox prevents the call.

// Listens on a numeric address (empty: all addresses); port 0 takes a free port. Throws Error.
FileDescriptor listen_on(const std::string& host, std::uint16_t port);
std::uint16_t local_port(const FileDescriptor& socket);

// Tries all addresses of a name until the deadline, repeatedly while they refuse. source: numeric address to connect
// from; empty: chosen by the routing table. patience: how long they may refuse, for an address that had a listener
// before. Throws TimeoutError, and Error after `patience`.
FileDescriptor connect_to(const std::string& host, std::uint16_t port, Deadline deadline,
                          const std::string& source = "", const Interrupted& interrupted = {},
                          std::optional<std::chrono::milliseconds> patience = std::nullopt);
// Accepts from the listener that gets the first connection. Returns an empty descriptor at the deadline, or when
// `wake`, an eventfd, is set.
FileDescriptor accept_from(std::span<const FileDescriptor> listeners, Deadline deadline, int wake = -1);

// Numeric addresses of a connection's ends.
std::string local_address(const FileDescriptor& socket);
std::string peer_address(const FileDescriptor& socket);
// Returns the first numeric address of a name; empty if it has none.
std::string resolve(const std::string& host);
// Returns this machine's address on the route to `host`, without sending anything; empty if there is no route.
std::string route_to(const std::string& host);
// Returns addresses of the interfaces that `names` selects, in NCCL's syntax. "eth,ib" are prefixes and "=eth0,eth1"
// exact names; each selects its first interface, so several names are several rails. "^lo,docker" selects the first
// interface with none of the prefixes. Throws ConfigError, which lists the interfaces.
std::vector<std::string> addresses_of_interfaces(const std::string& names);
bool is_loopback(const std::string& address);

void set_no_delay(const FileDescriptor& socket);
// Detects a dead peer or link within idle + interval x count seconds. Only for connections that are mostly idle.
void set_keepalive(const FileDescriptor& socket, int idle_s, int interval_s, int count);
// Returns whether a keepalive probe is unanswered. Sending data now would delay keepalive's verdict.
bool is_probed(const FileDescriptor& socket);

// Transfer all bytes. Throw TimeoutError at the deadline, and ConnectionEnded when the other side closes.
void send_all(int socket, const void* data, std::size_t size, Deadline deadline, const Interrupted& interrupted = {});
void recv_all(int socket, void* data, std::size_t size, Deadline deadline, const Interrupted& interrupted = {});

}  // namespace smdp
