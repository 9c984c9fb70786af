// Both ends of a fresh connection prove that they know the job's secret, before anything else is read from it.
//
// Each sends {magic, version, 32 random bytes}, then HMAC(secret, role | client's bytes | server's bytes | purpose).
// Only fixed sizes are read, so garbage costs the reader nothing.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/file_descriptor.h"
#include "transport/tcp/socket.h"

namespace smdp {

enum class Role { kClient, kServer };

// purpose: what the connection is for; both ends must agree. Throws Error (never with the secret in it),
// ConnectionEnded where the other side hangs up without an answer. proved: called on a server whose client knows the
// secret, before the client is told so.
void handshake(const FileDescriptor& socket, Role role, std::string_view secret, std::string_view purpose,
               Deadline deadline, const Interrupted& interrupted = {}, const std::function<void()>& proved = {});

}  // namespace smdp
