#include "reduce/streamed.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "reduce/reduce.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace smdp {

#if defined(__x86_64__)
void copy_streamed(void* to, const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t kLine = 64;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(target) % kLine) % kLine);
  copy_bytes(target, source, head);
  std::size_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    const auto* vectors = reinterpret_cast<const __m128i*>(source + done);
    const __m128i line[] = {_mm_loadu_si128(vectors), _mm_loadu_si128(vectors + 1), _mm_loadu_si128(vectors + 2),
                            _mm_loadu_si128(vectors + 3)};
    auto* place = reinterpret_cast<__m128i*>(target + done);
    for (std::size_t i = 0; i < 4; ++i) _mm_stream_si128(place + i, line[i]);
  }
  copy_bytes(target + done, source + done, bytes - done);
  _mm_sfence();
}
#else
void copy_streamed(void* to, const void* from, std::size_t bytes) noexcept { copy_bytes(to, from, bytes); }
#endif

bool exceeds_caches(std::size_t bytes) noexcept {
  // Not sysconf(_SC_LEVEL3_CACHE_SIZE), which adds up a socket's caches where processors have several.
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
