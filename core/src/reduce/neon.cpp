#include <arm_neon.h>

#include "reduce/loops.h"

namespace smdp::kernels {
namespace {

struct Neon {
  static constexpr std::size_t kBytes = 16;
  static constexpr bool kPrefetches = false;
  using Plain = PlainConversions<kBytes>;
  using Floats = Plain::Floats;

  static inline Floats widen_half(const void* from) { return (Floats)vcvt_f32_f16(load<float16x4_t>(from)); }

  static inline void narrow_half(void* to, const Floats& floats) {
    const float32x4_t value = (float32x4_t)floats;
    const float32x4_t clean = vbslq_f32(vceqq_f32(value, value), value, vdupq_n_f32(__builtin_nanf("")));
    const float16x4_t halves = vcvt_f16_f32(clean);
    __builtin_memcpy(to, &halves, sizeof(halves));
  }

  static inline Floats widen_bfloat(const void* from) { return (Floats)vshll_n_u16(load<uint16x4_t>(from), 16); }

  static inline void narrow_bfloat(void* to, const Floats& floats) {
    const uint16x4_t narrow = vmovn_u32((uint32x4_t)Plain::round_bfloat(floats));
    __builtin_memcpy(to, &narrow, sizeof(narrow));
  }
};

}  // namespace

constexpr Table neon = make_table<Neon>("neon");

}  // namespace smdp::kernels
