// Element types and reductions, shared by every collective and binding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smdp/export.h"

namespace smdp {

// Element types. The 8-bit floats and the unsigned 16 to 64 bit integers are moved, never reduced.
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

// SUM and PRODUCT of bool are OR and AND, as are MAX and MIN. Integers wrap. AVG of integers truncates towards zero.
// Partial sums of an AVG of float16 that go from host to host are divided already, so that they do not overflow.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAvg = 1,        // SUM divided by the size of the group
  kPremulSum = 2,  // every rank's input times its own factor, then SUM
  kProduct = 3,
  kMin = 4,  // NaN propagates
  kMax = 5,  // NaN propagates
  kBand = 6,
  kBor = 7,
  kBxor = 8,
};

// Bytes of one element.
SMDP_API std::size_t size_of(DType dtype);

// Name as NumPy and torch spell it, e.g. "float32".
SMDP_API const char* name_of(DType dtype);

// Name as torch spells it, e.g. "SUM".
SMDP_API const char* name_of(ReduceOp op);

// True where op is defined on dtype.
SMDP_API bool is_supported(DType dtype, ReduceOp op);

}  // namespace smdp
