#include "memory/checkpointing.h"

#include <algorithm>
#include <charconv>

#include "common/argument.h"

namespace smdp::memory {

Checkpointing parse_checkpointing(const std::string& name) {
  if (name == "none") return {};
  if (name == "each") return {1, false};
  if (name == "contiguous") return {std::numeric_limits<std::int64_t>::max(), false};
  if (name == "selective") return {0, true};
  const std::string prefix = "group_";
  std::int64_t group = 0;
  const char* end = name.data() + name.size();
  if (name.starts_with(prefix)) {
    const auto [last, error] = std::from_chars(name.data() + prefix.size(), end, group);
    if (error == std::errc() && last == end && group >= 1) return {group, false};
  }
  refuse("checkpointing", "'" + name + "'", "none, each, group_N with N from 1, contiguous, selective");
}

Kept kept(const std::vector<Piece>& pieces, const Span& span, const Checkpointing& checkpointing) {
  Kept sum;
  double group = 0;
  std::int64_t members = 0;
  for (std::size_t i = span.begin; i < span.end; ++i) {
    const Piece& piece = pieces[i];
    if (!piece.is_layer) continue;
    if (checkpointing.is_selective) {
      sum.bytes += piece.activations - piece.rebuilt;
      sum.rebuilt = std::max(sum.rebuilt, piece.rebuilt);
      ++sum.blocks;
    } else if (checkpointing.group == 0) {
      sum.bytes += piece.activations;
      ++sum.blocks;
    } else {
      if (members == checkpointing.group) {
        group = 0;
        members = 0;
      }
      if (members == 0) {
        sum.bytes += piece.input;
        ++sum.blocks;
      }
      group += piece.activations;
      ++members;
      sum.rebuilt = std::max(sum.rebuilt, group);
    }
  }
  return sum;
}

}  // namespace smdp::memory
