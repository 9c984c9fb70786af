#include <immintrin.h>

#include "reduce/loops.h"

namespace smdp::kernels {
namespace {

// GCC warns about the undefined vector inside intrinsics without a mask (GCC bug 105593); a full mask costs nothing.
constexpr __mmask16 kAll = 0xffff;

struct Avx512 {
  static constexpr std::size_t kBytes = 64;
  static constexpr bool kPrefetches = true;
  using Plain = PlainConversions<kBytes>;
  using Floats = Plain::Floats;

  static inline Floats widen_half(const void* from) { return (Floats)_mm512_maskz_cvtph_ps(kAll, load<__m256i>(from)); }

  static inline void narrow_half(void* to, const Floats& floats) {
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)floats, (__m512)floats, _CMP_UNORD_Q);
    const __m512 clean = _mm512_mask_mov_ps((__m512)floats, nan, _mm512_set1_ps(__builtin_nanf("")));
    const __m256i halves = _mm512_maskz_cvtps_ph(kAll, clean, _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(to, &halves, sizeof(halves));
  }

  static inline Floats widen_bfloat(const void* from) {
    return (Floats)((Plain::Words)_mm512_maskz_cvtepu16_epi32(kAll, load<__m256i>(from)) << 16);
  }

  // Not VCVTNEPS2BF16, which flushes denormals.
  static inline void narrow_bfloat(void* to, const Floats& floats) {
    const __m256i narrow = _mm512_maskz_cvtepi32_epi16(kAll, (__m512i)Plain::round_bfloat(floats));
    __builtin_memcpy(to, &narrow, sizeof(narrow));
  }

  static inline void stream(void* to, const void* from) {
    _mm512_stream_si512(static_cast<__m512i*>(to), load<__m512i>(from));
  }
};

}  // namespace

constexpr Table avx512 = make_table<Avx512>("avx512", stream<Avx512>);

}  // namespace smdp::kernels
