// What one rank says it is doing in one operation; all ranks must say the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "smdp/dtype.h"
#include "smdp/error.h"

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
  kSplit,
  kSend,
  kRecv,
  kAllReduceSparse,  // `root` is the number of sparse dimensions
};

const char* name_of(OpKind kind);

// Plain data: it lies in shared memory and travels in message headers.
struct Fingerprint {
  static constexpr std::size_t kMaxDims = 8;

  std::uint64_t sequence = 0;  // number of the collective within its group; 0: it has none yet
  std::uint64_t count = 0;     // elements; for uneven operations a hash of the list of counts
  OpKind kind = OpKind::kNone;
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t ndim = 0;  // at most kMostDims; kSeveral: dims are elements of several blocks
  std::int32_t root = -1;
  std::uint64_t shape = 0;            // hash of the whole shape, or list of shapes; 0: none was given
  std::uint64_t name = 0;             // hash of the whole name; 0: it has none
  std::uint32_t dims[kMaxDims] = {};  // for messages, as all below: only who finds a mismatch reads them
  char name_end[56] = {};             // the last characters of the name; not terminated where it fills them

  static constexpr std::uint8_t kSeveral = 0x80;
  static constexpr std::uint8_t kMostDims = 0x7f;

  // Sets ndim, dims (cut at kMaxDims and 2^32 - 1), shape and count.
  void set_shape(std::span<const std::int64_t> extents);
  // Sets all of that but count.
  void add_shape(std::span<const std::int64_t> extents);
  // Of a list of blocks, by their elements. Sets count, and ndim and dims if they differ.
  void set_counts(const std::vector<std::uint64_t>& counts);
  // Of blocks of different shapes. Sets ndim, dims and shape.
  void add_shapes(const std::vector<std::vector<std::int64_t>>& shapes);
  // What the program calls this operation. An empty name is none.
  void set_name(std::string_view text);

  // Same operation on the same kind of data. Shapes are compared where both sides know them, names always: one without
  // a name is not one with a name.
  bool matches(const Fingerprint& other) const {
    return sequence == other.sequence && count == other.count && kind == other.kind && dtype == other.dtype &&
           op == other.op && root == other.root && name == other.name &&
           (shape == other.shape || shape == 0 || other.shape == 0);
  }

  // E.g. "all_reduce #12 float32[512] SUM", "broadcast 'weights' #3 int64[4, 2] from rank 0",
  // "all_gather #4 int8 in blocks of 3, 5 elements".
  std::string describe() const;
  // E.g. "'weights'"; empty if it has none.
  std::string describe_name() const;

 private:
  void set_blocks(const std::vector<std::uint64_t>& counts);
};
static_assert(sizeof(Fingerprint) == 128);

// Of counts that two ranks know, and no other.
class CountMismatch : public MismatchError {
 public:
  using MismatchError::MismatchError;
};

// "WHO expects 3 elements of float32 from PEER, which sends 4, in all_to_all #7 float32", and the rule.
std::string describe_sizes(const std::string& who, std::size_t expected_bytes, const std::string& peer,
                           std::size_t sent_bytes, const Fingerprint& operation);

// "FIRST called ..., but SECOND called ...", and the rule.
std::string describe_mismatch(const std::string& first, const Fingerprint& theirs_first, const std::string& second,
                              const Fingerprint& theirs_second);

}  // namespace smdp
