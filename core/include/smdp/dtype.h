// Element types and reductions, shared by every collective and binding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smdp/export.h"

namespace smdp {

// Element types. The 8-bit floats and the unsigned 16- to 64-bit integers can be moved but not reduced.
enum class DType : std::uint8_t {
  kBool = 0,
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kBfloat16 = 7,
  kFloat32 = 8,
  kFloat64 = 9,
  kComplex32 = 10,   // two float16
  kComplex64 = 11,   // two float32
  kComplex128 = 12,  // two float64
  kUint16 = 13,
  kUint32 = 14,
  kUint64 = 15,
  kFloat8 = 16,  // any other 8-bit float
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
  kFloat8E8M0FNU = 21,
};

// For bool, SUM and MAX are OR; PRODUCT and MIN are AND. Integers wrap around. AVG of integers truncates toward zero.
// Partial sums of an AVG of float16 are divided before they travel between hosts, so that they do not overflow.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAvg = 1,        // SUM divided by the size of the group
  kPremulSum = 2,  // SUM of every rank's input times its own factor
  kProduct = 3,
  kMin = 4,  // NaN propagates
  kMax = 5,  // NaN propagates
  kBand = 6,
  kBor = 7,
  kBxor = 8,
};

// Returns the size of one element in bytes.
SMDP_API std::size_t size_of(DType dtype);

// Returns the name as NumPy and torch spell it, e.g. "float32".
SMDP_API const char* name_of(DType dtype);

// Returns the name as torch spells it, e.g. "SUM".
SMDP_API const char* name_of(ReduceOp op);

// Returns whether `op` is defined on `dtype`.
SMDP_API bool is_supported(DType dtype, ReduceOp op);

}  // namespace smdp
