// Reads or writes a list of buffers as one stream of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "collectives/local.h"

namespace smdp {

using Copy = void (*)(void* to, const void* from, std::size_t bytes) noexcept;

// Advances through `pieces`; copies at most what is left.
class Cursor {
 public:
  explicit Cursor(std::vector<Bytes> pieces) : pieces_(std::move(pieces)) {}

  // copy: copy_bytes or copy_streamed.
  std::size_t read(std::byte* to, std::size_t bytes, Copy copy = copy_bytes) {
    return walk(bytes, [&](std::byte* piece, std::size_t n, std::size_t done) { copy(to + done, piece, n); });
  }
  std::size_t write(const std::byte* from, std::size_t bytes, Copy copy = copy_bytes) {
    return walk(bytes, [&](std::byte* piece, std::size_t n, std::size_t done) { copy(piece, from + done, n); });
  }
  std::size_t skip(std::size_t bytes) {
    return walk(bytes, [](std::byte*, std::size_t, std::size_t) {});
  }

 private:
  template <class Step>
  std::size_t walk(std::size_t bytes, Step step) {
    std::size_t done = 0;
    while (done < bytes && index_ < pieces_.size()) {
      const std::size_t n = std::min(bytes - done, pieces_[index_].size - offset_);
      if (n != 0) step(pieces_[index_].data + offset_, n, done);
      done += n;
      offset_ += n;
      if (offset_ == pieces_[index_].size) {
        ++index_;
        offset_ = 0;
      }
    }
    return done;
  }

  std::vector<Bytes> pieces_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
};

inline std::size_t total_size(const std::vector<Bytes>& pieces) {
  std::size_t total = 0;
  for (const Bytes& piece : pieces) total += piece.size;
  return total;
}

}  // namespace smdp
