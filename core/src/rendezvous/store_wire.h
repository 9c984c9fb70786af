// The protocol between TcpStore's client and server after the handshake: requests, each with one answer.
#pragma once

#include <cstdint>
#include <string>

#include "smdp/error.h"
#include "transport/tcp/socket.h"

namespace smdp {

enum class StoreCommand : std::uint8_t { kSet = 1, kGet = 2, kCheck = 3 };
// kFailed: the value is the reason why the server cannot serve the client.
enum class StoreStatus : std::uint8_t { kDone = 1, kMissing = 2, kFailed = 3 };

struct StoreHeader {
  std::uint8_t code = 0;  // StoreCommand or StoreStatus
  std::uint8_t reserved[3] = {};
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
  std::uint32_t timeout_ms = 0;
};
static_assert(sizeof(StoreHeader) == 16);

inline constexpr std::uint32_t kMaxKey = 4096;
inline constexpr std::uint32_t kMaxValue = 16U << 20;

struct StoreMessage {
  StoreHeader header;
  std::string key;
  std::string value;
};

inline void send_message(const FileDescriptor& socket, const StoreMessage& message, Deadline deadline,
                         const Interrupted& interrupted = {}) {
  std::string wire(reinterpret_cast<const char*>(&message.header), sizeof message.header);
  wire += message.key;
  wire += message.value;
  send_all(socket.get(), wire.data(), wire.size(), deadline, interrupted);
}

inline StoreMessage receive_message(const FileDescriptor& socket, Deadline deadline,
                                    const Interrupted& interrupted = {}) {
  StoreMessage message;
  recv_all(socket.get(), &message.header, sizeof message.header, deadline, interrupted);
  if (message.header.key_bytes > kMaxKey || message.header.value_bytes > kMaxValue) {
    throw Error("[smdp] a message of the rendezvous store is too long.");
  }
  message.key.resize(message.header.key_bytes);
  message.value.resize(message.header.value_bytes);
  recv_all(socket.get(), message.key.data(), message.key.size(), deadline, interrupted);
  recv_all(socket.get(), message.value.data(), message.value.size(), deadline, interrupted);
  return message;
}

}  // namespace smdp
