// What one rank says it is doing in one operation; all ranks must say the same.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "smdp/dtype.h"

namespace smdp {

enum class OpKind : std::uint8_t {
  kNone = 0,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kRecv,
};

const char* name_of(OpKind kind);

// Plain data: it lies in shared memory and travels in message headers.
struct Fingerprint {
  static constexpr std::size_t kMaxDims = 8;

  std::uint64_t sequence = 0;  // number of the collective within its group
  std::uint64_t count = 0;     // elements; for uneven operations a hash of the list of counts
  OpKind kind = OpKind::kNone;
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t ndim = 0;
  std::int32_t root = -1;
  std::uint32_t dims[kMaxDims] = {};

  // Sets ndim and dims (cut at kMaxDims and 2^32 - 1) and count.
  void set_shape(std::span<const std::int64_t> shape);

  // Same operation on the same kind of data. Whole object: padding-free by the assertion below.
  bool matches(const Fingerprint& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }

  // E.g. "all_reduce #12 float32[512] SUM", "broadcast #3 int64[4, 2] from rank 0".
  std::string describe() const;
};
static_assert(sizeof(Fingerprint) == 56);

// "FIRST called ..., but SECOND called ...", and the rule.
std::string describe_mismatch(const std::string& first, const Fingerprint& theirs_first, const std::string& second,
                              const Fingerprint& theirs_second);

}  // namespace smdp
