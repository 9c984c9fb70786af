// Interface that encodes partial sums of float32 between hosts, for compressed gradients. Implemented in fusion/.
#pragma once

#include <cstddef>

namespace smdp {

// Belongs to one buffer, for which it may keep state (what was lost in earlier steps). `offset` is the position of a
// piece within the buffer, in elements; pieces are the same in every step. Sizes depend only on the arguments, so that
// both ends know them. Thread safety: one thread at a time.
class Codec {
 public:
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec() = default;

  // One host's contribution to a piece.
  virtual std::size_t encoded_bytes(std::size_t count) const = 0;
  virtual void encode(std::size_t offset, const float* in, std::size_t count, std::byte* out) = 0;
  virtual void decode(const std::byte* in, std::size_t count, float* out) const = 0;

  // Returns whether the owner's own contribution must also be encoded, although it is not sent.
  virtual bool encodes_own() const { return false; }

  // The sum over `hosts` contributions, which the piece's owner sends back.
  virtual std::size_t sum_bytes(std::size_t count, std::size_t /*hosts*/) const { return encoded_bytes(count); }
  virtual void encode_sum(std::size_t offset, const float* in, std::size_t count, std::size_t /*hosts*/,
                          std::byte* out) {
    encode(offset, in, count, out);
  }
  virtual void decode_sum(const std::byte* in, std::size_t count, std::size_t /*hosts*/, float* out) const {
    decode(in, count, out);
  }
};

}  // namespace smdp
