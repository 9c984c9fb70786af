// A layout in detail: which list of slices each (stage, tensor slice) shards over its data ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "smdp/sharding.h"

namespace smdp::sharding {

struct Coordinates {
  std::int64_t stage = 0;
  std::int64_t slice = 0;
  std::int64_t shard = 0;
};

class LaidOut {
 public:
  // Both must outlive it. Throws InvalidArgument.
  LaidOut(const std::vector<Parameter>& parameters, const Layout& layout);

  std::int64_t size() const { return layout_.pipeline * layout_.tensor * layout_.data; }
  std::int64_t rank(const Coordinates& at) const;
  Coordinates coordinates(std::int64_t rank) const;
  const Layout& layout() const { return layout_; }

  const ParameterShards& shards(std::int64_t stage, std::int64_t slice) const {
    return shards_[static_cast<std::size_t>(stage * layout_.tensor + slice)];
  }
  // Returns the pieces of whole parameters that the rank there holds.
  std::vector<Piece> holdings(const Coordinates& at) const;

 private:
  const std::vector<Parameter>& parameters_;
  const Layout& layout_;
  std::vector<std::vector<std::size_t>> members_;  // parameters of each stage
  std::vector<ParameterShards> shards_;
  std::vector<std::int64_t> indices_;  // the inverse of layout.ranks
};

}  // namespace smdp::sharding
