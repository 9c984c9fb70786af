#include "sharding/layout.h"

#include <algorithm>

#include "sharding/check.h"

namespace smdp::sharding {
namespace {

// Block `slice` of the divided dimension, like torch's chunk(): the last ones may be short or empty.
struct Block {
  std::int64_t begin;
  std::int64_t length;
};

Block block_of(const Parameter& parameter, std::int64_t tensor, std::int64_t slice) {
  if (!parameter.is_split) return {0, parameter.length};
  const std::int64_t longest = (parameter.length + tensor - 1) / tensor;
  const std::int64_t begin = std::min(parameter.length, longest * slice);
  return {begin, std::min(parameter.length, begin + longest) - begin};
}

// Adds the piece's rows, which are not contiguous in the whole parameter.
void add_rows(const Parameter& parameter, const Block& block, const Piece& piece, std::vector<Piece>& rows) {
  const std::int64_t unit = parameter.inner * parameter.element_size;
  const std::int64_t row = block.length * unit;
  const std::int64_t stride = parameter.length * unit;
  for (std::int64_t at = piece.begin; at < piece.end;) {
    const std::int64_t inside = at % row;
    const std::int64_t count = std::min(piece.end - at, row - inside);
    const std::int64_t begin = at / row * stride + block.begin * unit + inside;
    const std::int64_t offset = piece.offset + at - piece.begin;
    if (!rows.empty() && rows.back().parameter == piece.parameter && rows.back().end == begin &&
        rows.back().offset + (rows.back().end - rows.back().begin) == offset) {
      rows.back().end += count;
    } else {
      rows.push_back({piece.parameter, begin, begin + count, offset});
    }
    at += count;
  }
}

}  // namespace

LaidOut::LaidOut(const std::vector<Parameter>& parameters, const Layout& layout)
    : parameters_(parameters), layout_(layout) {
  check(parameters, layout);
  members_.resize(static_cast<std::size_t>(layout.pipeline));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const std::int64_t stage : layout.stages[i]) members_[static_cast<std::size_t>(stage)].push_back(i);
  }
  for (const std::vector<std::size_t>& members : members_) {
    for (std::int64_t slice = 0; slice < layout.tensor; ++slice) {
      std::vector<Parameter> slices;
      for (const std::size_t member : members) {
        slices.push_back(parameters[member]);
        slices.back().length = block_of(parameters[member], layout.tensor, slice).length;
      }
      shards_.emplace_back(std::move(slices), layout.data);
    }
  }
  indices_.resize(layout.ranks.size());
  for (std::size_t i = 0; i < layout.ranks.size(); ++i) {
    indices_[static_cast<std::size_t>(layout.ranks[i])] = static_cast<std::int64_t>(i);
  }
}

std::int64_t LaidOut::rank(const Coordinates& at) const {
  const std::int64_t index = (at.stage * layout_.tensor + at.slice) * layout_.data + at.shard;
  return layout_.ranks.empty() ? index : layout_.ranks[static_cast<std::size_t>(index)];
}

Coordinates LaidOut::coordinates(std::int64_t rank) const {
  check_count("rank", rank, 0, size() - 1);
  const std::int64_t index = indices_.empty() ? rank : indices_[static_cast<std::size_t>(rank)];
  const std::int64_t group = index / layout_.data;
  return {group / layout_.tensor, group % layout_.tensor, index % layout_.data};
}

std::vector<Piece> LaidOut::holdings(const Coordinates& at) const {
  const std::vector<std::size_t>& members = members_[static_cast<std::size_t>(at.stage)];
  std::vector<Piece> rows;
  for (Piece piece : shards(at.stage, at.slice).pieces(at.shard)) {
    piece.parameter = members[piece.parameter];
    const Parameter& parameter = parameters_[piece.parameter];
    add_rows(parameter, block_of(parameter, layout_.tensor, at.slice), piece, rows);
  }
  return rows;
}

std::vector<Piece> holdings(const std::vector<Parameter>& parameters, const Layout& layout, std::int64_t rank) {
  const LaidOut laid_out(parameters, layout);
  return laid_out.holdings(laid_out.coordinates(rank));
}

std::int64_t shard_bytes(const std::vector<Parameter>& parameters, const Layout& layout, std::int64_t rank) {
  const LaidOut laid_out(parameters, layout);
  const Coordinates at = laid_out.coordinates(rank);
  return laid_out.shards(at.stage, at.slice).bytes(at.shard);
}

}  // namespace smdp::sharding
