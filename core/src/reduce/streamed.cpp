#include "reduce/streamed.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "reduce/kernels.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace smdp {
namespace {

void stream(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  using kernels::kLine;
  const kernels::StreamFunction stream_lines = kernels::current().stream;
  if (stream_lines == nullptr) return copy_bytes(to, from, bytes);
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  const std::size_t lines = (bytes - head) / kLine;
  const std::size_t done = head + lines * kLine;
  copy_bytes(to, from, head);
  stream_lines(to + head, from + head, lines);
  copy_bytes(to + done, from + done, bytes - done);
}

// Streamed stores wait in buffers of the processor. One fence per operation, not per piece, orders all of them.
void order_stores() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace

void copy_streamed(void* to, const void* from, std::size_t bytes) noexcept {
  stream(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
  order_stores();
}

void reduce_streamed(void* dst, const void* const* sources, std::size_t k, std::size_t count, const Reduction& r) {
  // By way of the first-level cache.
  alignas(kernels::kLine) std::byte piece[std::size_t{8} << 10];
  const std::size_t size = size_of(r.dtype);
  std::vector<const void*> from(sources, sources + k);
  auto* to = static_cast<std::byte*>(dst);
  while (count != 0) {
    const std::size_t n = std::min(count, sizeof piece / size);
    reduce(piece, from.data(), k, n, r);
    stream(to, piece, n * size);
    for (const void*& source : from) source = static_cast<const std::byte*>(source) + n * size;
    to += n * size;
    count -= n;
  }
  order_stores();
}

bool exceeds_caches(std::size_t bytes) noexcept {
  // Not sysconf(_SC_LEVEL3_CACHE_SIZE), which adds up a socket's caches on processors that have several.
  static const std::size_t last = [] {
    std::size_t kibibytes = 0;
    if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re")) {
      if (std::fscanf(file, "%zuK", &kibibytes) != 1) kibibytes = 0;
      std::fclose(file);
    }
    return kibibytes != 0 ? kibibytes << 10 : std::size_t{32} << 20;
  }();
  return bytes > last;
}

}  // namespace smdp
