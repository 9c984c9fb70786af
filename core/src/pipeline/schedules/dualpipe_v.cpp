// DualPipeV: DualPipe (DeepSeek-V3, arXiv 2412.19437) cut in half, in the order of torch 2.13. Two virtual stages per
// rank in a V; in the middle, a forward of one and a backward of the other run as an overlapped pair, so that each
// hides the other's communication.
#include <deque>
#include <string>
#include <utility>

#include "common/argument.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {
namespace {

class Row {
 public:
  Row(std::vector<Action>& row, int stages, int rank) : row_(row), stage_{rank, 2 * stages - 1 - rank} {}

  void forward(int half) { row_.push_back(compute(ActionKind::kForward, stage_[half], forwards_[half]++)); }

  // split: only the input gradient; the weight gradient is queued.
  void backward(int half, bool split) {
    const int microbatch = backwards_[half]++;
    row_.push_back(compute(split ? ActionKind::kBackwardInput : ActionKind::kBackward, stage_[half], microbatch));
    if (split) pending_.emplace_back(stage_[half], microbatch);
  }

  void weight() {
    if (pending_.empty()) return;
    row_.push_back(compute(ActionKind::kBackwardWeight, pending_.front().first, pending_.front().second));
    pending_.pop_front();
  }

  // Forward of one half, backward of the other.
  void overlap(int forward_half) {
    const int other = 1 - forward_half;
    row_.push_back({.kind = ActionKind::kOverlap,
                    .second_kind = ActionKind::kBackward,
                    .stage = stage_[forward_half],
                    .microbatch = forwards_[forward_half]++,
                    .other_stage = stage_[other],
                    .other_microbatch = backwards_[other]++});
  }

 private:
  std::vector<Action>& row_;
  const int stage_[2];
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
  std::deque<std::pair<int, int>> pending_;
};

}  // namespace

Schedule dualpipe_v(const GenerateOptions& options) {
  const int p = options.stages;
  if (options.microbatches < 2 * p) {
    refuse("microbatches", std::to_string(options.microbatches),
           std::to_string(2 * p) + " or more for dualpipe_v, the number of its virtual stages; zb_v takes any");
  }
  Schedule schedule = blank("dualpipe_v", Placement::kV, options);
  for (int rank = 0; rank < p; ++rank) {
    Row row(schedule.rows[static_cast<std::size_t>(rank)], p, rank);
    const int behind = p - 1 - rank;  // ranks further down the V
    for (int i = 0; i < 2 * behind; ++i) row.forward(0);
    for (int i = 0; i <= rank; ++i) {
      row.forward(0);
      row.forward(1);
    }
    for (int i = 0; i < behind; ++i) {
      row.backward(1, true);
      row.weight();
      row.forward(1);
    }
    for (int i = 0; i < options.microbatches - 2 * p + rank + 1; ++i) {
      if (i == 0 && rank == p - 1) {
        // On the last rank no input comes from elsewhere yet, so running one after the other makes the bubble smaller.
        row.forward(0);
        row.backward(1, false);
      } else {
        row.overlap(0);
      }
      row.overlap(1);
    }
    for (int i = 0; i < behind; ++i) {
      row.backward(1, false);
      row.overlap(1);
    }
    // The second half of the last backwards is split, and their weight gradients fill the end.
    const int split_from = rank + 1;  // counted in single backwards, of 2 (rank + 1)
    for (int i = 0; i <= rank; ++i) {
      row.backward(1, 2 * i >= split_from);
      row.backward(0, 2 * i + 1 >= split_from);
    }
    for (int i = 0; i < behind; ++i) {
      row.weight();
      row.backward(0, true);
    }
    for (int i = 0; i <= rank; ++i) row.weight();
  }
  return schedule;
}

}  // namespace smdp::pipeline
