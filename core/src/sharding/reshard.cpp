// Which bytes to send where when the layout changes.
//
// The source ranks that hold a parameter form copies, each of which has every byte once: one per stage that holds it
// and, for a parameter that tensor parallelism replicates, also one per tensor slice. Each target rank takes a
// parameter from one copy, so it gets every byte exactly once.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "sharding/layout.h"
#include "smdp/error.h"

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
  std::vector<std::int64_t> ranks;  // ranks that hold a part of it, sorted
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

// A plan being built. Rows of a matrix that comes from several ranks alternate between them, so a row continues the
// newest move from its own source, not the plan's last move.
class Plan {
 public:
  explicit Plan(std::int64_t sources) : newest_(static_cast<std::size_t>(sources), kNone) {}

  void add(const Move& run) {
    if (++runs_ > kMostRuns) throw InvalidArgument(too_much("2^26 pieces to send"));
    std::size_t& newest = newest_[static_cast<std::size_t>(run.source)];
    if (newest != kNone && moves_[newest].target == run.target && extend(moves_[newest], run)) return;
    if (moves_.size() == kMostMoves) throw InvalidArgument(too_much("2^22 moves"));
    newest = moves_.size();
    moves_.push_back(run);
  }

  std::vector<Move> take() { return std::move(moves_); }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  // A larger plan does not fit in memory, especially as Python objects.
  static constexpr std::size_t kMostMoves = std::size_t{1} << 22;
  // Stages that share a parameter multiply the number; more would take seconds.
  static constexpr std::int64_t kMostRuns = std::int64_t{1} << 26;

  static std::string too_much(const std::string& most) {
    return "[smdp] the plan from one layout to the other has more than " + most +
           ", which is the maximum. Plan fewer parameters at a time.";
  }

  static bool extend(Move& move, const Move& run) {
    const std::int64_t source = run.source_offset - move.source_offset;
    const std::int64_t target = run.target_offset - move.target_offset;
    if (move.rows == 1 && source == move.bytes && target == move.bytes) {
      move.bytes += run.bytes;
      return true;
    }
    if (run.bytes != move.bytes || source <= 0) return false;
    if (move.rows == 1) {
      move.source_stride = source;
      move.target_stride = target;
    } else if (source != move.rows * move.source_stride || target != move.rows * move.target_stride) {
      return false;
    }
    ++move.rows;
    return true;
  }

  std::vector<Move> moves_;
  std::vector<std::size_t> newest_;  // of each source
  std::int64_t runs_ = 0;
};

}  // namespace

std::vector<Move> reshard(const std::vector<Parameter>& parameters, const Layout& source, const Layout& target) {
  const LaidOut from(parameters, source);
  const LaidOut to(parameters, target);
  const Copies copies = copies_of(parameters, from);
  Plan plan(from.size());
  for (std::int64_t rank = 0; rank < to.size(); ++rank) {
    for (const Piece& piece : to.holdings(to.coordinates(rank))) {
      const std::vector<Held>& held = choose(copies[piece.parameter], rank).pieces;
      auto at = std::partition_point(held.begin(), held.end(), [&](const Held& one) { return one.end <= piece.begin; });
      for (std::int64_t begin = piece.begin; begin < piece.end; ++at) {
        const std::int64_t end = std::min(piece.end, at->end);
        Move run;
        run.source = at->rank;
        run.source_offset = at->offset + begin - at->begin;
        run.target = rank;
        run.target_offset = piece.offset + begin - piece.begin;
        run.bytes = end - begin;
        plan.add(run);
        begin = end;
      }
    }
  }
  return plan.take();
}

}  // namespace smdp::sharding
