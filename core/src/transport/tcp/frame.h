// The header of every piece of data between two ranks on different hosts. Both ends have proved the job's secret before
// the first frame. Hosts of one job have the same byte order (checked at rendezvous).
#pragma once

#include <cstdint>

#include "transport/fingerprint.h"

namespace smdp {

// Identifies a message within one collective; algorithms number their messages.
struct MessageKey {
  std::uint64_t sequence = 0;  // of the collective
  std::uint64_t slot = 0;
  bool operator==(const MessageKey&) const = default;
};

struct Frame {
  static constexpr std::uint32_t kMagic = 0x70646d73;  // "smdp"
  static constexpr std::uint64_t kMaxPayload = std::uint64_t{1} << 20;

  std::uint32_t magic = kMagic;
  std::uint32_t reserved = 0;
  std::uint64_t slot = 0;
  std::uint64_t offset = 0;   // of this frame's payload within the message
  std::uint64_t payload = 0;  // bytes that follow
  std::uint64_t total = 0;    // bytes of the whole message
  Fingerprint fingerprint;    // of the collective, including its sequence number
};
static_assert(sizeof(Frame) == 168);

}  // namespace smdp
