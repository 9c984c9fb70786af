// What each kernel file exports: one constant table, so that none of its code runs before the CPU has been checked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smdp/dtype.h"

namespace smdp::kernels {

// `count` is in components if dtype is complex.
using ReduceFunction = void (*)(void* dst, const void* const* sources, std::size_t k, std::size_t count,
                                std::uint32_t divisor);
using ScaleFunction = void (*)(void* dst, const void* src, std::size_t count, double factor);
// Copies whole lines of kLine bytes past the caches; dst is aligned to a line. Not ordered before later writes.
using StreamFunction = void (*)(void* dst, const void* src, std::size_t lines);

inline constexpr std::size_t kLine = 64;

inline constexpr std::size_t kDTypes = static_cast<std::size_t>(DType::kFloat8E8M0FNU) + 1;
inline constexpr std::size_t kReduceOps = static_cast<std::size_t>(ReduceOp::kBxor) + 1;

// Entries that reduce.cpp maps to others are null: kPremulSum, sums of complex types, bit operations of integers other
// than kUint8, and scaling of integers.
struct Table {
  const char* name;
  ReduceFunction reduce[kDTypes][kReduceOps];
  ScaleFunction scale[kDTypes];
  ScaleFunction narrow[kDTypes];  // float32 to a 16-bit float, after the factor
  ScaleFunction widen[kDTypes];   // back, before the factor
  StreamFunction stream;          // null if the instruction set has no such stores
};

extern const Table generic;
extern const Table avx2;    // x86-64 only: AVX2, F16C
extern const Table avx512;  // x86-64 only: AVX-512 F, BW, VL, DQ, F16C
extern const Table neon;    // aarch64 only

// Returns the table in use.
const Table& current() noexcept;

}  // namespace smdp::kernels
