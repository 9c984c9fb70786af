// Element types of the kernels' loops: how values are stored and how they are computed. Part of loops.h, which explains
// why everything here has internal linkage.
//
// An instruction set `Isa` provides kBytes, the size of its vectors; kPrefetches, whether loops that only load and add
// prefetch; and widen_half, narrow_half, widen_bfloat and narrow_bfloat, which convert between kBytes / 4 16-bit floats
// in memory and a vector of float32.
#pragma once

#include <cstddef>
#include <cstdint>

#define SMDP_INLINE inline __attribute__((always_inline))

namespace smdp::kernels {
namespace {  // NOLINT: see above

template <class T, std::size_t bytes>
using Vector __attribute__((vector_size(bytes))) = T;

template <class T>
SMDP_INLINE T load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}

template <class To, class From>
SMDP_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

template <std::size_t bytes>
SMDP_INLINE Vector<std::uint32_t, bytes> bits_of(const Vector<float, bytes>& floats) {
  return bit_cast<Vector<std::uint32_t, bytes>>(floats);
}

// 16-bit conversions in plain vector arithmetic. No float32 denormals occur in them.
template <std::size_t bytes>
struct PlainConversions {
  static constexpr std::size_t kBytes = bytes;
  static constexpr bool kPrefetches = false;
  using Floats = Vector<float, bytes>;
  using Words = Vector<std::uint32_t, bytes>;

  using Shorts = Vector<std::uint16_t, bytes / 2>;

  static SMDP_INLINE Words load_words(const void* from) { return __builtin_convertvector(load<Shorts>(from), Words); }

  static SMDP_INLINE void store_words(void* to, const Words& words) {
    const Shorts narrow = __builtin_convertvector(words, Shorts);
    __builtin_memcpy(to, &narrow, sizeof(narrow));
  }

  static SMDP_INLINE Floats widen_half(const void* from) {
    const Words half = load_words(from);
    const Words magnitude = half & 0x7fffU;
    const Words normal = (magnitude << 13) + (112U << 23);
    const Words special = (magnitude << 13) + (224U << 23);
    // 0.5 + m * 2^-24 is exact, and so is the remainder.
    const Words denormal = bit_cast<Words>(bit_cast<Floats>(magnitude | 0x3f000000U) - 0.5F);
    const Words finite = magnitude < 0x0400U ? denormal : normal;
    return bit_cast<Floats>((magnitude >= 0x7c00U ? special : finite) | ((half & 0x8000U) << 16));
  }

  static SMDP_INLINE void narrow_half(void* to, const Floats& floats) {
    const Words bits = bits_of<bytes>(floats);
    const Words magnitude = bits & 0x7fffffffU;
    const Words normal = (magnitude + (0xfffU - (112U << 23)) + ((magnitude >> 13) & 1U)) >> 13;
    // The addition rounds to multiples of 2^-24, to nearest even.
    const Words denormal = bits_of<bytes>(bit_cast<Floats>(magnitude) + 0.5F) - 0x3f000000U;
    const Words infinity = Words{} + 0x7c00U;
    const Words finite = magnitude < 0x38800000U ? denormal : normal;
    const Words number = (magnitude >= 0x47800000U ? infinity : finite) | ((bits >> 16) & 0x8000U);
    store_words(to, floats != floats ? infinity + 0x0200U : number);
  }

  static SMDP_INLINE Floats widen_bfloat(const void* from) { return bit_cast<Floats>(load_words(from) << 16); }

  static SMDP_INLINE Words round_bfloat(const Floats& floats) {
    const Words bits = bits_of<bytes>(floats);
    const Words rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const Words nan = Words{} + 0x7fc0U;
    return floats != floats ? nan : rounded;
  }

  static SMDP_INLINE void narrow_bfloat(void* to, const Floats& floats) { store_words(to, round_bfloat(floats)); }
};

template <class Isa, class T>
struct Integer {
  static constexpr bool kPrefetches = Isa::kPrefetches;
  static constexpr std::size_t kSize = sizeof(T);
  static constexpr std::size_t kLanes = Isa::kBytes / sizeof(T);
  using Scalar = T;
  using Value = Vector<T, Isa::kBytes>;
  static SMDP_INLINE Value read(const void* from) { return load<Value>(from); }
  static SMDP_INLINE void write(void* to, const Value& value) { __builtin_memcpy(to, &value, sizeof(value)); }
};

template <class Isa>
struct Bool : Integer<Isa, std::uint8_t> {
  using Value = typename Integer<Isa, std::uint8_t>::Value;
  static SMDP_INLINE Value read(const void* from) {
    const Value value = load<Value>(from);
    return bit_cast<Value>(value != 0) & 1;
  }
};

template <class Isa, class T>
struct Float {
  static constexpr bool kPrefetches = Isa::kPrefetches;
  static constexpr std::size_t kSize = sizeof(T);
  static constexpr std::size_t kLanes = Isa::kBytes / sizeof(T);
  using Scalar = T;
  using Value = Vector<T, Isa::kBytes>;
  static SMDP_INLINE Value read(const void* from) { return load<Value>(from); }
  static SMDP_INLINE void write(void* to, const Value& value) {
    // CPUs differ in the sign and payload of the NaN they produce, and compilers in the order of operands.
    constexpr T kNan = sizeof(T) == 4 ? static_cast<T>(__builtin_nanf("")) : static_cast<T>(__builtin_nan(""));
    const Value nans = Value{} + kNan;
    const Value clean = value != value ? nans : value;
    __builtin_memcpy(to, &clean, sizeof(clean));
  }
};

template <class Isa>
struct Half {
  static constexpr bool kPrefetches = true;
  static constexpr std::size_t kSize = 2;
  static constexpr std::size_t kLanes = Isa::kBytes / sizeof(float);
  using Scalar = float;
  using Value = Vector<float, Isa::kBytes>;
  static SMDP_INLINE Value read(const void* from) { return Isa::widen_half(from); }
  static SMDP_INLINE void write(void* to, const Value& value) { Isa::narrow_half(to, value); }
};

template <class Isa>
struct Bfloat {
  static constexpr bool kPrefetches = true;
  static constexpr std::size_t kSize = 2;
  static constexpr std::size_t kLanes = Isa::kBytes / sizeof(float);
  using Scalar = float;
  using Value = Vector<float, Isa::kBytes>;
  static SMDP_INLINE Value read(const void* from) { return Isa::widen_bfloat(from); }
  static SMDP_INLINE void write(void* to, const Value& value) { Isa::narrow_bfloat(to, value); }
};

// For reductions, two bfloat16 values per word: the upper one is a float32 except for its lower half, the lower one
// becomes one by a shift, so neither changes its lane.
template <class Isa>
struct BfloatPair {
  static constexpr bool kPrefetches = true;
  static constexpr std::size_t kSize = 2;
  static constexpr std::size_t kLanes = Isa::kBytes / 2;
  using Floats = Vector<float, Isa::kBytes>;
  using Words = Vector<std::uint32_t, Isa::kBytes>;
  struct Value {
    Floats lower;
    Floats upper;
  };
  static SMDP_INLINE Value read(const void* from) {
    const Words words = load<Words>(from);
    return {bit_cast<Floats>(words << 16), bit_cast<Floats>(words & 0xffff0000U)};
  }
  static SMDP_INLINE void write(void* to, const Value& value) {
    using Plain = PlainConversions<Isa::kBytes>;
    const Words words = Plain::round_bfloat(value.lower) | (Plain::round_bfloat(value.upper) << 16);
    __builtin_memcpy(to, &words, sizeof(words));
  }
};

// What operations see of an element: its whole value, or each half of a pair.
template <class Element>
struct Operate {
  using Value = typename Element::Value;
  template <class Op>
  static SMDP_INLINE Value fold(const Value& a, const Value& b) {
    return Op::template fold<Element>(a, b);
  }
  template <class End>
  static SMDP_INLINE Value finish(const Value& value, std::uint32_t divisor) {
    return End::template finish<Element>(value, divisor);
  }
};

template <class Isa>
struct Operate<BfloatPair<Isa>> {
  using Value = typename BfloatPair<Isa>::Value;
  using Half = Float<Isa, float>;
  template <class Op>
  static SMDP_INLINE Value fold(const Value& a, const Value& b) {
    return {Op::template fold<Half>(a.lower, b.lower), Op::template fold<Half>(a.upper, b.upper)};
  }
  template <class End>
  static SMDP_INLINE Value finish(const Value& value, std::uint32_t divisor) {
    return {End::template finish<Half>(value.lower, divisor), End::template finish<Half>(value.upper, divisor)};
  }
};

}  // namespace
}  // namespace smdp::kernels
