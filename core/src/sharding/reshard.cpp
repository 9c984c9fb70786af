// Which bytes go from where to where when the layout changes.
//
// The ranks of the source that hold a parameter fall into copies, each of which has every byte once: one per stage
// that holds it, and of a parameter that tensor parallelism keeps whole one per tensor slice as well. Each rank of the
// target takes a parameter from one copy, so that it gets every byte once by construction.
#include <algorithm>

#include "sharding/layout.h"

namespace smdp::sharding {
namespace {

struct Held {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t rank;
  std::int64_t offset;
};

struct Copy {
  std::vector<Held> pieces;         // in the order of the parameter
  std::vector<std::int64_t> ranks;  // of those that have a part in it, sorted
};

using Copies = std::vector<std::vector<Copy>>;  // of each parameter

Copies copies_of(const std::vector<Parameter>& parameters, const LaidOut& source) {
  const Layout& layout = source.layout();
  Copies copies(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::size_t slices = parameters[i].is_split ? 1 : static_cast<std::size_t>(layout.tensor);
    copies[i].resize(layout.stages[i].size() * slices);
  }
  for (std::int64_t rank = 0; rank < source.size(); ++rank) {
    const Coordinates at = source.coordinates(rank);
    for (const Piece& piece : source.holdings(at)) {
      const std::vector<std::int64_t>& stages = layout.stages[piece.parameter];
      const auto place =
          static_cast<std::size_t>(std::lower_bound(stages.begin(), stages.end(), at.stage) - stages.begin());
      const bool is_split = parameters[piece.parameter].is_split;
      const std::size_t index =
          is_split ? place : place * static_cast<std::size_t>(layout.tensor) + static_cast<std::size_t>(at.slice);
      Copy& copy = copies[piece.parameter][index];
      copy.pieces.push_back({piece.begin, piece.end, rank, piece.offset});
      if (copy.ranks.empty() || copy.ranks.back() != rank) copy.ranks.push_back(rank);
    }
  }
  for (std::vector<Copy>& each : copies) {
    for (Copy& copy : each) {
      std::sort(copy.pieces.begin(), copy.pieces.end(), [](const Held& a, const Held& b) { return a.begin < b.begin; });
    }
  }
  return copies;
}

const Copy& choose(const std::vector<Copy>& copies, std::int64_t rank) {
  for (const Copy& copy : copies) {
    if (std::binary_search(copy.ranks.begin(), copy.ranks.end(), rank)) return copy;
  }
  return copies[static_cast<std::size_t>(rank) % copies.size()];
}

void add(const Move& move, std::vector<Move>& plan) {
  if (!plan.empty()) {
    Move& last = plan.back();
    if (last.source == move.source && last.target == move.target &&
        last.source_offset + last.bytes == move.source_offset &&
        last.target_offset + last.bytes == move.target_offset) {
      last.bytes += move.bytes;
      return;
    }
  }
  plan.push_back(move);
}

}  // namespace

std::vector<Move> reshard(const std::vector<Parameter>& parameters, const Layout& source, const Layout& target) {
  const LaidOut from(parameters, source);
  const LaidOut to(parameters, target);
  const Copies copies = copies_of(parameters, from);
  std::vector<Move> plan;
  for (std::int64_t rank = 0; rank < to.size(); ++rank) {
    for (const Piece& piece : to.holdings(to.coordinates(rank))) {
      const std::vector<Held>& held = choose(copies[piece.parameter], rank).pieces;
      auto at = std::partition_point(held.begin(), held.end(), [&](const Held& one) { return one.end <= piece.begin; });
      for (std::int64_t begin = piece.begin; begin < piece.end; ++at) {
        const std::int64_t end = std::min(piece.end, at->end);
        add({at->rank, at->offset + begin - at->begin, rank, piece.offset + begin - piece.begin, end - begin}, plan);
        begin = end;
      }
    }
  }
  return plan;
}

}  // namespace smdp::sharding
