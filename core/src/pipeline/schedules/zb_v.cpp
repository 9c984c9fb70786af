// ZB-V (Qi et al., arXiv 2401.10241, section 6) in the order of torch 2.13: two virtual stages per rank, down the ranks
// and back up, so that a microbatch ends where it began. For rank r of p, "first" is its stage on the way down and
// "second" the one on the way up:
//
//   2(p - r) - 1 forwards of the first; r pairs of forwards of the second and the first; p - r times the second's
//   forward and whole backward. From then on forward and backward of the first and of the second, alternately. At the
//   end r pairs of input gradients, p - r backwards of the first, and the remaining weight gradients.
//
// It has no bubble of span if F, I and W take the same time.
#include <algorithm>

#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {
namespace {

class ZbVRow {
 public:
  ZbVRow(std::vector<Action>& row, int stages, int rank, int microbatches)
      : row_(row), stage_{rank, 2 * stages - 1 - rank}, microbatches_(microbatches) {}

  void forward(int half) { add(ActionKind::kForward, half, forwards_[half]++); }
  void input(int half) { add(ActionKind::kBackwardInput, half, inputs_[half]++); }
  void weight(int half) { add(ActionKind::kBackwardWeight, half, weights_[half]++); }

  int forwards(int half) const { return forwards_[half]; }
  bool has_weights(int half) const { return weights_[half] < inputs_[half]; }

 private:
  // The order is that of a full pipeline; microbatches that do not exist are skipped.
  void add(ActionKind kind, int half, int microbatch) {
    if (microbatch < microbatches_) row_.push_back(compute(kind, stage_[half], microbatch));
  }

  std::vector<Action>& row_;
  const int stage_[2];
  const int microbatches_;
  int forwards_[2] = {0, 0};
  int inputs_[2] = {0, 0};
  int weights_[2] = {0, 0};
};

}  // namespace

Schedule zb_v(const GenerateOptions& options) {
  Schedule schedule = blank("zb_v", Placement::kV, options);
  const int p = options.stages;
  const int full = std::max(2 * p - 1, options.microbatches);
  for (int rank = 0; rank < p; ++rank) {
    ZbVRow row(schedule.rows[static_cast<std::size_t>(rank)], p, rank, options.microbatches);
    for (int i = 0; i < 2 * (p - rank) - 1; ++i) row.forward(0);
    for (int i = 0; i < rank; ++i) {
      row.forward(1);
      row.forward(0);
    }
    const auto turn = [&row](int half) {
      row.forward(half);
      row.input(half);
      row.weight(half);
    };
    for (int i = 0; i < p - rank; ++i) turn(1);
    while (row.forwards(1) < row.forwards(0) || row.forwards(0) < full) {
      if (row.forwards(0) < full) row.forward(0);
      row.input(0);
      row.weight(0);
      turn(1);
    }
    for (int i = 0; i < rank; ++i) {
      row.input(0);
      row.input(1);
    }
    for (int i = 0; i < p - rank; ++i) {
      row.input(0);
      row.weight(0);
    }
    while (row.has_weights(1)) row.weight(1);
    while (row.has_weights(0)) row.weight(0);
  }
  return schedule;
}

}  // namespace smdp::pipeline
