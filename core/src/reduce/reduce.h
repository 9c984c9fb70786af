// Element-wise reductions over memory, with the widest kernel that this CPU runs.
//
// All kernels give the same bits on every CPU: additions keep the order of the sources, nothing is contracted to FMA,
// 16-bit floats accumulate in float32 and are rounded once to nearest even, denormals are kept whatever the calling
// thread's mode is, and a computed NaN is always the quiet, positive NaN without payload.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smdp/dtype.h"

namespace smdp {

// What to compute. kPremulSum sums; scale() applies its factors first.
struct Reduction {
  DType dtype;
  ReduceOp op;
  std::uint32_t divisor = 1;  // for kAvg: the group's size in the stage that divides, 1 in all others
};

// Returns the dtype of the parts of complex numbers; every other dtype unchanged.
DType component_of(DType dtype) noexcept;

// A reduction in stages that store partial sums: what the first, the middle and the last stage compute. Means of
// float16 are divided in the first stage, before rounding, because a partial sum may overflow where the mean does not.
Reduction first_stage(Reduction r) noexcept;
Reduction middle_stage(Reduction r) noexcept;
Reduction last_stage(Reduction r) noexcept;

// dst = sources[0] op sources[1] op ... in that order, over `count` elements and k >= 1 sources, in one pass. dst may
// equal one of the sources, and must not overlap the others. A single source is copied bit by bit (bool becomes 0 or
// 1). MIN and MAX of equal values keep the first. Requires is_supported(r.dtype, r.op).
void reduce(void* dst, const void* const* sources, std::size_t k, std::size_t count, const Reduction& r) noexcept;

// dst = src * factor; dst may be src. 16-bit floats are multiplied in float32. Integers wrap if the factor is a whole
// number; otherwise they are truncated toward zero and saturate. Requires is_supported(dtype, kPremulSum).
void scale(void* dst, const void* src, std::size_t count, DType dtype, double factor) noexcept;

// Like memcpy, which is slow on some processors if source and destination are aligned differently.
void copy_bytes(void* to, const void* from, std::size_t bytes) noexcept;
// Uses the kernel in use, on any processor.
void copy_in_vectors(void* to, const void* from, std::size_t bytes) noexcept;

// Convert between float32 and kFloat16 or kBfloat16 (`dtype`), rounded to nearest even. The factor applies to the
// float32.
void narrow(void* dst, DType dtype, const float* src, std::size_t count, double factor = 1.0) noexcept;
void widen(float* dst, const void* src, DType dtype, std::size_t count, double factor = 1.0) noexcept;

// Returns the kernel in use: "avx512", "avx2", "neon" or "generic".
const char* kernel_name() noexcept;

// Uses this kernel from now on (SMDP_FORCE_KERNEL, tests). Throws ConfigError if this CPU cannot run it.
void force_kernel(const std::string& name);

// Returns the names of the kernels that this CPU runs, fastest first.
std::vector<std::string> available_kernels();

}  // namespace smdp
