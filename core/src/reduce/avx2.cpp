#include <immintrin.h>

#include "reduce/loops.h"

namespace smdp::kernels {
namespace {

struct Avx2 {
  static constexpr std::size_t kBytes = 32;
  static constexpr bool kPrefetches = false;
  using Plain = PlainConversions<kBytes>;
  using Floats = Plain::Floats;

  static inline Floats widen_half(const void* from) { return (Floats)_mm256_cvtph_ps(load<__m128i>(from)); }

  static inline void narrow_half(void* to, const Floats& floats) {
    const __m256 nan = _mm256_cmp_ps((__m256)floats, (__m256)floats, _CMP_UNORD_Q);
    const __m256 clean = _mm256_blendv_ps((__m256)floats, _mm256_set1_ps(__builtin_nanf("")), nan);
    const __m128i halves = _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(to, &halves, sizeof(halves));
  }

  static inline Floats widen_bfloat(const void* from) {
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(load<__m128i>(from)), 16);
  }

  static inline void narrow_bfloat(void* to, const Floats& floats) {
    const __m256i words = (__m256i)Plain::round_bfloat(floats);
    const __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    __builtin_memcpy(to, &narrow, sizeof(narrow));
  }

  static inline void stream(void* to, const void* from) {
    _mm256_stream_si256(static_cast<__m256i*>(to), load<__m256i>(from));
  }
};

}  // namespace

constexpr Table avx2 = make_table<Avx2>("avx2", stream<Avx2>);

}  // namespace smdp::kernels
