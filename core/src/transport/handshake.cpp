#include "transport/handshake.h"

#include <cstring>

#include "common/hmac.h"
#include "smdp/error.h"

namespace smdp {
namespace {

constexpr std::size_t kNonce = 32;
constexpr char kMagic[8] = {'s', 'm', 'd', 'p', 'h', 's', '0', '3'};

struct Hello {
  char magic[8];
  char nonce[kNonce];
};

Digest proof(std::string_view secret, char role, const Hello& client, const Hello& server, std::string_view purpose) {
  std::string message(1, role);
  message.append(client.nonce, kNonce).append(server.nonce, kNonce).append(purpose);
  return hmac_sha256(secret, message);
}

}  // namespace

void handshake(const FileDescriptor& socket, Role role, std::string_view secret, std::string_view purpose,
               Deadline deadline, const Interrupted& interrupted, const std::function<void()>& proved) {
  Hello own{};
  Hello theirs{};
  std::memcpy(own.magic, kMagic, sizeof kMagic);
  std::memcpy(own.nonce, random_bytes(kNonce).data(), kNonce);
  send_all(socket.get(), &own, sizeof own, deadline, interrupted);
  recv_all(socket.get(), &theirs, sizeof theirs, deadline, interrupted);
  if (std::memcmp(theirs.magic, kMagic, sizeof kMagic) != 0) {
    throw Error(
        "[smdp] the other side of a connection does not speak smdp's protocol, or speaks a different version of it.");
  }
  const bool is_client = role == Role::kClient;
  const Hello& client = is_client ? own : theirs;
  const Hello& server = is_client ? theirs : own;
  const Digest of_client = proof(secret, 'c', client, server, purpose);
  const Digest of_server = proof(secret, 's', client, server, purpose);
  // The client proves itself first, because a server that anyone can reach must not reveal material for guessing the
  // secret.
  if (is_client) send_all(socket.get(), of_client.data(), of_client.size(), deadline, interrupted);
  Digest received;
  recv_all(socket.get(), received.data(), received.size(), deadline, interrupted);
  const bool is_right = equal_digests(received, is_client ? of_server : of_client);
  if (!is_client) {
    if (is_right && proved) proved();
    const Digest reply = is_right ? of_server : Digest{};  // an empty reply, so that the client also learns of it at
                                                           // once
    send_all(socket.get(), reply.data(), reply.size(), deadline, interrupted);
  }
  if (!is_right) {
    throw Error(
        "[smdp] the other side of a connection has another secret (SMDP_SECRET, SMDP_SECRET_FILE), so the connection "
        "was refused.");
  }
}

}  // namespace smdp
