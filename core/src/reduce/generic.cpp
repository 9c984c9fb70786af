// Runs on any CPU; the reference for the other kernels.
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "reduce/loops.h"

namespace smdp::kernels {

#if defined(__x86_64__)
namespace {

// Available on every x86-64 CPU.
struct Sse2 {
  static constexpr std::size_t kBytes = 16;

  static inline void stream(void* to, const void* from) {
    _mm_stream_si128(static_cast<__m128i*>(to), load<__m128i>(from));
  }
};

}  // namespace

constexpr Table generic = make_table<PlainConversions<16>>("generic", stream<Sse2>);
#else
constexpr Table generic = make_table<PlainConversions<16>>("generic");
#endif

}  // namespace smdp::kernels
