// What one rank does in one operation, in a form that is compared: it must be the same on all ranks.
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
  kAllGather,  // `root` is 0 if the ranks of a host gather into the same memory
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

// Plain data: it is stored in shared memory and sent in message headers.
struct Fingerprint {
  static constexpr std::size_t kMaxDims = 8;

  std::uint64_t sequence = 0;  // number of the collective within its group; 0: not assigned yet
  std::uint64_t count = 0;     // elements; for uneven operations a hash of the list of counts
  OpKind kind = OpKind::kNone;
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t ndim = 0;  // at most kMostDims; kSeveral: dims holds the elements of several blocks
  std::int32_t root = -1;
  std::uint64_t shape = 0;            // hash of the whole shape, or list of shapes; 0: no shape was given
  std::uint64_t name = 0;             // hash of the whole name; 0: no name
  std::uint32_t dims[kMaxDims] = {};  // used only in messages, like all fields below, after a mismatch
  char name_end[56] = {};             // the last characters of the name; not terminated if it fills them

  static constexpr std::uint8_t kSeveral = 0x80;
  static constexpr std::uint8_t kMostDims = 0x7f;

  // Sets ndim, dims (cut at kMaxDims and 2^32 - 1), shape and count.
  void set_shape(std::span<const std::int64_t> extents);
  // Sets the same fields except count.
  void add_shape(std::span<const std::int64_t> extents);
  // For a list of blocks, given by their elements. Sets count, and also ndim and dims if the blocks differ.
  void set_counts(const std::vector<std::uint64_t>& counts);
  // For blocks with different shapes. Sets ndim, dims and shape.
  void add_shapes(const std::vector<std::vector<std::int64_t>>& shapes);
  // Sets the program's name for this operation. An empty text means no name.
  void set_name(std::string_view text);

  // Returns whether both are the same operation on the same kind of data. Shapes are compared if both sides have one.
  // Names are always compared: a missing name differs from any name.
  bool matches(const Fingerprint& other) const {
    return sequence == other.sequence && count == other.count && kind == other.kind && dtype == other.dtype &&
           op == other.op && root == other.root && name == other.name &&
           (shape == other.shape || shape == 0 || other.shape == 0);
  }

  // Returns, for example, "all_reduce #12 float32[512] SUM", "broadcast 'weights' #3 int64[4, 2] from rank 0", or
  // "all_gather #4 int8 in blocks of 3, 5 elements".
  std::string describe() const;
  // Returns, for example, "'weights'"; empty if there is no name.
  std::string describe_name() const;

 private:
  void set_blocks(const std::vector<std::uint64_t>& counts);
};
static_assert(sizeof(Fingerprint) == 128);

// A mismatch of counts that only two ranks know.
class CountMismatch : public MismatchError {
 public:
  using MismatchError::MismatchError;
};

// Returns "WHO expects 3 elements from PEER, which sends 4, in all_to_all #7 float32", and the rule.
std::string describe_sizes(const std::string& who, std::size_t expected_bytes, const std::string& peer,
                           std::size_t sent_bytes, const Fingerprint& operation);

// Returns "FIRST called ..., but SECOND called ...", and the rule.
std::string describe_mismatch(const std::string& first, const Fingerprint& theirs_first, const std::string& second,
                              const Fingerprint& theirs_second);

}  // namespace smdp
