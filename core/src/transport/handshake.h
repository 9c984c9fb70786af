// Both ends of a new connection prove that they know the job's secret before anything else is read from it.
//
// Each end sends {magic, version, 32 random bytes}, then HMAC(secret, role | client's bytes | server's bytes |
// purpose). Only fixed sizes are read, so an unauthenticated peer cannot make the reader use memory.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/file_descriptor.h"
#include "transport/tcp/socket.h"

namespace smdp {

enum class Role { kClient, kServer };

// purpose: what the connection is for; both ends must agree. proved: called on a server once the client has proved the
// secret, before the client is told. Throws Error (which never contains the secret), and ConnectionEnded if the other
// side closes the connection without an answer.
void handshake(const FileDescriptor& socket, Role role, std::string_view secret, std::string_view purpose,
               Deadline deadline, const Interrupted& interrupted = {}, const std::function<void()>& proved = {});

}  // namespace smdp
