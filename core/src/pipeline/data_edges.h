// Between which virtual stages values are passed: from each stage to the next, and along the skip edges.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

class DataEdges {
 public:
  explicit DataEdges(const Schedule& schedule)
      : stages_(schedule.stages()), skips_(schedule.skip_edges), out_(size(stages_)), in_(size(stages_)) {
    for (int edge = 0; edge < count(); ++edge) {
      out_[size(source(edge))].push_back(edge);
      in_[size(target(edge))].push_back(edge);
    }
  }

  // Edge i < stages - 1 goes from i to i + 1; the skip edges follow.
  int count() const { return stages_ - 1 + static_cast<int>(skips_.size()); }
  int source(int edge) const { return edge < stages_ - 1 ? edge : skips_[size(edge - stages_ + 1)].first; }
  int target(int edge) const { return edge < stages_ - 1 ? edge + 1 : skips_[size(edge - stages_ + 1)].second; }
  const std::vector<int>& out(int stage) const { return out_[size(stage)]; }
  const std::vector<int>& in(int stage) const { return in_[size(stage)]; }

  // Returns -1 if there is none.
  int between(int source, int target) const {
    if (source < 0 || source >= stages_ || target < 0 || target >= stages_) return -1;
    if (target == source + 1) return source;
    for (const int edge : out(source)) {
      if (this->target(edge) == target) return edge;
    }
    return -1;
  }

  // Returns the edge of a transfer's value; -1 if it names none.
  int of(const Action& transfer) const {
    const bool starts_here = transfer.kind == ActionKind::kSendForward || transfer.kind == ActionKind::kRecvBackward;
    return starts_here ? between(transfer.stage, transfer.other_stage) : between(transfer.other_stage, transfer.stage);
  }

 private:
  static std::size_t size(int value) { return static_cast<std::size_t>(value); }

  int stages_;
  std::vector<std::pair<int, int>> skips_;
  std::vector<std::vector<int>> out_;
  std::vector<std::vector<int>> in_;
};

}  // namespace smdp::pipeline
