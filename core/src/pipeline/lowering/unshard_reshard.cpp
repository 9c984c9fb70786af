#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "common/argument.h"
#include "pipeline/lowering/require.h"
#include "smdp/pipeline/lowering.h"

namespace smdp::pipeline {
namespace {

// Goes through a row and keeps unsharded the next `count` different stages that the row computes.
class Sharder {
 public:
  Sharder(const Schedule& schedule, const std::vector<Action>& row, int count)
      : schedule_(schedule), row_(row), count_(at(count)), stages_(schedule.rank_of.size()) {
    for (std::size_t i = row.size(); i-- > 0;) {
      for_each_use(i, [&](int stage, std::size_t use) { stages_[at(stage)].uses.push_back(use); });
    }
    for (int stage = 0; stage < schedule.stages(); ++stage) queue(stage);
  }

  std::vector<Action> run() {
    std::vector<Action> lowered;
    for (std::size_t i = 0; i < row_.size(); ++i) {
      if (is_compute(row_[i].kind)) {
        choose();
        reshard(lowered);
        unshard(lowered);
      }
      lowered.push_back(row_[i]);
      for_each_use(i, [&](int stage, std::size_t use) {
        near_.erase({use, stage});
        stages_[at(stage)].uses.pop_back();
        queue(stage);
        leaving_.push_back(stage);
      });
    }
    near_.clear();
    leaving_.clear();
    for (int stage = 0; stage < schedule_.stages(); ++stage) leaving_.push_back(stage);
    reshard(lowered);
    return lowered;
  }

 private:
  struct Stage {
    std::vector<std::size_t> uses;  // the next one is last
    std::size_t unsharded_at = 0;   // 1 for the first one; 0: it is sharded
  };
  using Queue = std::set<std::pair<std::size_t, int>>;  // next use, stage

  // Both halves of a pair are needed at once; the forward comes first.
  template <typename Visit>
  void for_each_use(std::size_t i, Visit&& visit) const {
    if (!is_compute(row_[i].kind) || !is_in_range(schedule_, row_[i])) return;
    const bool is_one_stage = row_[i].kind == ActionKind::kOverlap && row_[i].stage == row_[i].other_stage;
    std::size_t use = 2 * i;
    for_each_part(row_[i], [&](const Action& part) {
      if (use == 2 * i || !is_one_stage) visit(part.stage, use);
      ++use;
    });
  }

  void queue(int stage) {
    if (!stages_[at(stage)].uses.empty()) far_.emplace(stages_[at(stage)].uses.back(), stage);
  }

  // Moves the stage with the nearest use into near_; the one that it displaces may have to be resharded.
  void choose() {
    while (!far_.empty() && (near_.size() < count_ || *far_.begin() < *near_.rbegin())) {
      if (near_.size() == count_) {
        leaving_.push_back(near_.rbegin()->second);
        far_.insert(near_.extract(std::prev(near_.end())));
      }
      coming_.push_back(*far_.begin());
      near_.insert(far_.extract(far_.begin()));
    }
  }

  bool is_near(int stage) const {
    const auto& uses = stages_[at(stage)].uses;
    return !uses.empty() && near_.contains({uses.back(), stage});
  }

  // The stage that was unsharded first is resharded first.
  void reshard(std::vector<Action>& lowered) {
    std::set<std::pair<std::size_t, int>> gone;
    for (const int stage : leaving_) {
      const std::size_t since = stages_[at(stage)].unsharded_at;
      if (since > 0 && !is_near(stage)) gone.emplace(since, stage);
    }
    for (const auto& [since, stage] : gone) {
      lowered.push_back({.kind = ActionKind::kReshard, .stage = stage});
      stages_[at(stage)].unsharded_at = 0;
    }
    leaving_.clear();
  }

  // The stage that is needed first is unsharded first.
  void unshard(std::vector<Action>& lowered) {
    std::sort(coming_.begin(), coming_.end());
    for (const auto& [use, stage] : coming_) {
      if (stages_[at(stage)].unsharded_at > 0 || !is_near(stage)) continue;
      lowered.push_back({.kind = ActionKind::kUnshard, .stage = stage});
      stages_[at(stage)].unsharded_at = ++unsharded_;
    }
    coming_.clear();
  }

  const Schedule& schedule_;
  const std::vector<Action>& row_;
  const std::size_t count_;
  std::vector<Stage> stages_;
  Queue near_;
  Queue far_;
  std::vector<int> leaving_;
  std::vector<std::pair<std::size_t, int>> coming_;
  std::size_t unsharded_ = 0;
};

}  // namespace

Schedule add_unshard_reshard(const Schedule& schedule, int unshard) {
  check_shape(schedule);
  check_count("unshard", unshard, 2, kLargestCount, ", because a pair of computations uses two stages");
  require_without(schedule, "add_unshard_reshard", "UNSHARD",
                  [](ActionKind kind) { return kind == ActionKind::kUnshard || kind == ActionKind::kReshard; });
  Schedule result = schedule;
  for (auto& row : result.rows) row = Sharder(schedule, row, unshard).run();
  return result;
}

}  // namespace smdp::pipeline
