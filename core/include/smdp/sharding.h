// Computes which rank holds which bytes of a model's parameters or optimizer state: equal shards of a list, and what to
// send where when the layout changes. Pure functions; nothing is allocated or sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "smdp/export.h"

namespace smdp::sharding {

// A tensor in row-major order, viewed as [outer, length, inner].
struct Parameter {
  std::int64_t outer = 1;
  std::int64_t length = 0;  // of the dimension that tensor parallelism divides, in blocks of ceil(length / tensor)
  std::int64_t inner = 1;
  std::int64_t element_size = 4;  // bytes: a power of 2 from 1 to 64
  bool is_split = false;          // false: replicated on every tensor-parallel rank
};

// Bytes [begin, end) of a parameter, and their offset in the owner's shard.
struct Piece {
  std::size_t parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
};

// A piece of one parameter, and the rank that owns it.
struct Owner {
  std::int64_t rank = 0;
  Piece piece;
};

// Shards of a list of parameters stored one after the other, each aligned to its element size. A shard begins at a
// multiple of 64 bytes, so that no element is cut, and the sizes of two shards differ by at most 64 bytes. is_split is
// ignored here.
class SMDP_API ParameterShards {
 public:
  // Throws InvalidArgument.
  ParameterShards(std::vector<Parameter> parameters, std::int64_t ranks);

  std::int64_t bytes() const { return begins_.back(); }  // of all shards, including alignment
  std::int64_t bytes(std::int64_t rank) const;
  std::vector<Piece> pieces(std::int64_t rank) const;       // in the order of the shard
  std::vector<Owner> owners(std::int64_t parameter) const;  // in the order of the parameter
  const std::vector<Parameter>& parameters() const { return parameters_; }

 private:
  struct Bounds {
    std::int64_t begin;
    std::int64_t end;
  };
  Bounds bounds(std::int64_t rank) const;

  std::vector<Parameter> parameters_;
  std::vector<std::int64_t> begins_;  // begin of each parameter, then the end of the last one
  std::int64_t ranks_;
};

// Rank (stage p, tensor slice t, data d) is ranks[(p * tensor + t) * data + d], or that index if `ranks` is empty.
struct Layout {
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t data = 1;                          // ranks that share a stage's slice in equal shards
  std::vector<std::vector<std::int64_t>> stages;  // of each parameter: the stages that hold it; several if it is tied
  std::vector<std::int64_t> ranks;
};

// Returns the pieces of whole parameters that a rank holds, in the order of its shard. Throws InvalidArgument.
SMDP_API std::vector<Piece> holdings(const std::vector<Parameter>& parameters, const Layout& layout, std::int64_t rank);

// Returns the size of a rank's shard in bytes.
SMDP_API std::int64_t shard_bytes(const std::vector<Parameter>& parameters, const Layout& layout, std::int64_t rank);

// Copies `rows` runs of `bytes` each: run i goes from source_offset + i * source_stride to target_offset + i *
// target_stride.
struct Move {
  std::int64_t source = 0;         // rank
  std::int64_t source_offset = 0;  // in its shard
  std::int64_t source_stride = 0;  // bytes between the beginnings of two runs; 0 for a single run
  std::int64_t target = 0;
  std::int64_t target_offset = 0;
  std::int64_t target_stride = 0;
  std::int64_t rows = 1;
  std::int64_t bytes = 0;  // of one run
};

// Returns everything that the ranks of `target` need, each byte once, sorted by target and target offset. If there are
// several copies, a rank takes its own, or else they take turns. Rows of a matrix that tensor parallelism cuts along
// its columns are one move. Throws InvalidArgument, also if the plan has more than 2^22 moves.
SMDP_API std::vector<Move> reshard(const std::vector<Parameter>& parameters, const Layout& source,
                                   const Layout& target);

}  // namespace smdp::sharding
