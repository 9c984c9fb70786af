// The loops of all kernels, as templates over an instruction set. Each kernel file includes them once and is compiled
// for its instruction set. Everything here therefore has internal linkage, and no inline functions of other headers are
// used: the linker must never merge a function built for AVX-512 with one that runs on any CPU.
//
// A reduction folds kUnroll vectors of every source in registers, source after source, and then stores them. All loads
// of a position come before its stores, so dst may be one of the sources; each source is read once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/elements.h"
#include "reduce/kernels.h"

namespace smdp::kernels {
namespace {

// Operations. Sums and products of integers run on unsigned types.

struct Sum {
  template <class Element>
  static SMDP_INLINE typename Element::Value fold(typename Element::Value a, typename Element::Value b) {
    return a + b;
  }
};

struct Product {
  template <class Element>
  static SMDP_INLINE typename Element::Value fold(typename Element::Value a, typename Element::Value b) {
    return a * b;
  }
};

// On (real, imaginary) pairs. Written so that subtractions and additions do not alternate, because GCC 12 turns such
// lanes into FMADDSUB even with -ffp-contract=off.
struct ComplexProduct {
  template <class Element>
  static SMDP_INLINE typename Element::Value fold(typename Element::Value a, typename Element::Value b) {
    typename Element::Value real, imaginary, swapped;
    for (std::size_t i = 0; i < Element::kLanes; i += 2) {
      real[i] = real[i + 1] = a[i];
      imaginary[i] = -a[i + 1];
      imaginary[i + 1] = a[i + 1];
      swapped[i] = b[i + 1];
      swapped[i + 1] = b[i];
    }
    return real * b + imaginary * swapped;
  }
};

struct Min {
  template <class Element>
  static SMDP_INLINE typename Element::Value fold(typename Element::Value a, typename Element::Value b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};

struct Max {
  template <class Element>
  static SMDP_INLINE typename Element::Value fold(typename Element::Value a, typename Element::Value b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};

struct And {
  template <class Element>
  static SMDP_INLINE typename Element::Value fold(typename Element::Value a, typename Element::Value b) {
    return a & b;
  }
};

struct Or {
  template <class Element>
  static SMDP_INLINE typename Element::Value fold(typename Element::Value a, typename Element::Value b) {
    return a | b;
  }
};

struct Xor {
  template <class Element>
  static SMDP_INLINE typename Element::Value fold(typename Element::Value a, typename Element::Value b) {
    return a ^ b;
  }
};

// What is done with the folded value before it is stored.

struct Keep {
  template <class Element>
  static SMDP_INLINE typename Element::Value finish(typename Element::Value value, std::uint32_t) {
    return value;
  }
};

struct DivideFloat {
  template <class Element>
  static SMDP_INLINE typename Element::Value finish(typename Element::Value value, std::uint32_t divisor) {
    return value / static_cast<typename Element::Scalar>(divisor);
  }
};

// `T`: the signed or unsigned type to divide in; the sum was unsigned.
template <class T>
struct DivideInteger {
  template <class Element>
  static SMDP_INLINE typename Element::Value finish(typename Element::Value value, std::uint32_t divisor) {
    for (std::size_t i = 0; i < Element::kLanes; ++i) {
      const std::int64_t quotient = static_cast<std::int64_t>(static_cast<T>(value[i])) / std::int64_t{divisor};
      value[i] = static_cast<typename Element::Scalar>(quotient);
    }
    return value;
  }
};

inline constexpr std::size_t kUnroll = 4;

// How far ahead of the loads memory is prefetched, never beyond the end, where a peer may be writing. On 64 MB this
// gained a tenth for float32 and a third for bfloat16 with AVX-512 on an Intel Xeon, and a factor of 1.8 for bfloat16
// with AVX2. On an AMD EPYC it costs a tenth to a fifth of float32's speed with AVX2 and gains a third for bfloat16.
inline constexpr std::size_t kPrefetchBytes = 2048;

template <std::size_t bytes>
SMDP_INLINE void prefetch(const unsigned char* from) {
  for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(from + kPrefetchBytes + i);
}

// Folds `vectors` vectors at byte `offset`. `fixed` is the number of sources if known, else 0. `ahead`: prefetch.
template <class Element, class Op, class End, std::size_t fixed, std::size_t vectors, bool ahead>
SMDP_INLINE void fold_at(unsigned char* dst, const void* const* sources, std::size_t k, std::size_t offset,
                         std::uint32_t divisor) {
  constexpr std::size_t step = Element::kLanes * Element::kSize;
  typename Element::Value folded[vectors];
  const unsigned char* first = static_cast<const unsigned char*>(sources[0]) + offset;
  if constexpr (ahead) prefetch<vectors * step>(first);
  for (std::size_t v = 0; v < vectors; ++v) folded[v] = Element::read(first + v * step);
  const std::size_t n = fixed != 0 ? fixed : k;
  for (std::size_t j = 1; j < n; ++j) {
    const unsigned char* source = static_cast<const unsigned char*>(sources[j]) + offset;
    if constexpr (ahead) prefetch<vectors * step>(source);
    for (std::size_t v = 0; v < vectors; ++v) {
      folded[v] = Operate<Element>::template fold<Op>(folded[v], Element::read(source + v * step));
    }
  }
  for (std::size_t v = 0; v < vectors; ++v) {
    Element::write(dst + offset + v * step, Operate<Element>::template finish<End>(folded[v], divisor));
  }
}

template <class Element, class Op, class End, std::size_t fixed>
SMDP_INLINE void fold_all(unsigned char* dst, const void* const* sources, std::size_t k, std::size_t bytes,
                          std::uint32_t divisor) {
  constexpr std::size_t step = Element::kLanes * Element::kSize;
  std::size_t offset = 0;
  if constexpr (Element::kPrefetches) {
    for (; offset + kUnroll * step + kPrefetchBytes <= bytes; offset += kUnroll * step) {
      fold_at<Element, Op, End, fixed, kUnroll, true>(dst, sources, k, offset, divisor);
    }
  }
  for (; offset + kUnroll * step <= bytes; offset += kUnroll * step) {
    fold_at<Element, Op, End, fixed, kUnroll, false>(dst, sources, k, offset, divisor);
  }
  for (; offset + step <= bytes; offset += step) {
    fold_at<Element, Op, End, fixed, 1, false>(dst, sources, k, offset, divisor);
  }
  if (offset == bytes) return;
  // The remainder uses vectors padded with zeros, so that every element is computed by the same instructions.
  const std::size_t rest = bytes - offset;
  unsigned char padded[step] = {};
  __builtin_memcpy(padded, static_cast<const unsigned char*>(sources[0]) + offset, rest);
  typename Element::Value folded = Element::read(padded);
  for (std::size_t j = 1; j < k; ++j) {
    __builtin_memcpy(padded, static_cast<const unsigned char*>(sources[j]) + offset, rest);
    folded = Operate<Element>::template fold<Op>(folded, Element::read(padded));
  }
  Element::write(padded, Operate<Element>::template finish<End>(folded, divisor));
  __builtin_memcpy(dst + offset, padded, rest);
}

template <class Element, class Op, class End = Keep>
void reduce(void* dst, const void* const* sources, std::size_t k, std::size_t count, std::uint32_t divisor) {
  unsigned char* bytes = static_cast<unsigned char*>(dst);
  if (k == 2) {
    const void* const pair[2] = {sources[0], sources[1]};
    fold_all<Element, Op, End, 2>(bytes, pair, k, count * Element::kSize, divisor);
  } else {
    fold_all<Element, Op, End, 0>(bytes, sources, k, count * Element::kSize, divisor);
  }
}

template <class Element>
void scale(void* dst, const void* src, std::size_t count, double factor) {
  constexpr std::size_t step = Element::kLanes * Element::kSize;
  const auto scalar = static_cast<typename Element::Scalar>(factor);
  const std::size_t bytes = count * Element::kSize;
  const unsigned char* from = static_cast<const unsigned char*>(src);
  unsigned char* to = static_cast<unsigned char*>(dst);
  std::size_t offset = 0;
  for (; offset + step <= bytes; offset += step) Element::write(to + offset, Element::read(from + offset) * scalar);
  if (offset == bytes) return;
  unsigned char padded[step] = {};
  __builtin_memcpy(padded, from + offset, bytes - offset);
  Element::write(padded, Element::read(padded) * scalar);
  __builtin_memcpy(to + offset, padded, bytes - offset);
}

template <class To, class From>
void convert(void* dst, const void* src, std::size_t count, double factor) {
  static_assert(To::kLanes == From::kLanes);
  const auto scalar = static_cast<float>(factor);
  const unsigned char* from = static_cast<const unsigned char*>(src);
  unsigned char* to = static_cast<unsigned char*>(dst);
  std::size_t i = 0;
  for (; i + To::kLanes <= count; i += To::kLanes) {
    To::write(to + i * To::kSize, From::read(from + i * From::kSize) * scalar);
  }
  if (i == count) return;
  unsigned char padded_from[From::kLanes * From::kSize] = {};
  unsigned char padded_to[To::kLanes * To::kSize];
  __builtin_memcpy(padded_from, from + i * From::kSize, (count - i) * From::kSize);
  To::write(padded_to, From::read(padded_from) * scalar);
  __builtin_memcpy(to + i * To::kSize, padded_to, (count - i) * To::kSize);
}

template <class Isa>
void stream(void* dst, const void* src, std::size_t lines) {
  unsigned char* to = static_cast<unsigned char*>(dst);
  const unsigned char* from = static_cast<const unsigned char*>(src);
  for (; lines != 0; --lines, to += kLine, from += kLine) {
    for (std::size_t v = 0; v < kLine; v += Isa::kBytes) Isa::stream(to + v, from + v);
  }
}

constexpr std::size_t index(DType dtype) { return static_cast<std::size_t>(dtype); }
constexpr std::size_t index(ReduceOp op) { return static_cast<std::size_t>(op); }

// `T` is the user's type, `U` its unsigned counterpart.
template <class Isa, class T, class U>
constexpr void add_integer(Table& table, DType dtype) {
  ReduceFunction* row = table.reduce[index(dtype)];
  row[index(ReduceOp::kSum)] = reduce<Integer<Isa, U>, Sum>;
  row[index(ReduceOp::kAvg)] = reduce<Integer<Isa, U>, Sum, DivideInteger<T>>;
  row[index(ReduceOp::kProduct)] = reduce<Integer<Isa, U>, Product>;
  row[index(ReduceOp::kMin)] = reduce<Integer<Isa, T>, Min>;
  row[index(ReduceOp::kMax)] = reduce<Integer<Isa, T>, Max>;
}

// Folded: the element type used for reducing.
template <class Element, class Folded = Element>
constexpr void add_float(Table& table, DType dtype, DType complex) {
  ReduceFunction* row = table.reduce[index(dtype)];
  row[index(ReduceOp::kSum)] = reduce<Folded, Sum>;
  row[index(ReduceOp::kAvg)] = reduce<Folded, Sum, DivideFloat>;
  row[index(ReduceOp::kProduct)] = reduce<Folded, Product>;
  row[index(ReduceOp::kMin)] = reduce<Folded, Min>;
  row[index(ReduceOp::kMax)] = reduce<Folded, Max>;
  table.scale[index(dtype)] = scale<Element>;
  if (complex != dtype) table.reduce[index(complex)][index(ReduceOp::kProduct)] = reduce<Element, ComplexProduct>;
}

template <class Isa>
constexpr Table make_table(const char* name, StreamFunction stream = nullptr) {
  Table table = {};
  table.name = name;
  table.stream = stream;

  ReduceFunction* logical = table.reduce[index(DType::kBool)];
  constexpr ReduceOp ors[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBor};
  constexpr ReduceOp ands[] = {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBand};
  for (const ReduceOp op : ors) logical[index(op)] = reduce<Bool<Isa>, Or>;
  for (const ReduceOp op : ands) logical[index(op)] = reduce<Bool<Isa>, And>;
  logical[index(ReduceOp::kBxor)] = reduce<Bool<Isa>, Xor>;

  add_integer<Isa, std::uint8_t, std::uint8_t>(table, DType::kUint8);
  add_integer<Isa, std::int8_t, std::uint8_t>(table, DType::kInt8);
  add_integer<Isa, std::int16_t, std::uint16_t>(table, DType::kInt16);
  add_integer<Isa, std::int32_t, std::uint32_t>(table, DType::kInt32);
  add_integer<Isa, std::int64_t, std::uint64_t>(table, DType::kInt64);
  ReduceFunction* bytes = table.reduce[index(DType::kUint8)];
  bytes[index(ReduceOp::kBand)] = reduce<Integer<Isa, std::uint8_t>, And>;
  bytes[index(ReduceOp::kBor)] = reduce<Integer<Isa, std::uint8_t>, Or>;
  bytes[index(ReduceOp::kBxor)] = reduce<Integer<Isa, std::uint8_t>, Xor>;

  add_float<Half<Isa>>(table, DType::kFloat16, DType::kComplex32);
  add_float<Bfloat<Isa>, BfloatPair<Isa>>(table, DType::kBfloat16, DType::kBfloat16);
  add_float<Float<Isa, float>>(table, DType::kFloat32, DType::kComplex64);
  add_float<Float<Isa, double>>(table, DType::kFloat64, DType::kComplex128);
  table.narrow[index(DType::kFloat16)] = convert<Half<Isa>, Float<Isa, float>>;
  table.narrow[index(DType::kBfloat16)] = convert<Bfloat<Isa>, Float<Isa, float>>;
  table.widen[index(DType::kFloat16)] = convert<Float<Isa, float>, Half<Isa>>;
  table.widen[index(DType::kBfloat16)] = convert<Float<Isa, float>, Bfloat<Isa>>;
  return table;
}

}  // namespace
}  // namespace smdp::kernels

#undef SMDP_INLINE
