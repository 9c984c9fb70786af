#include "pipeline/schedules/v_pattern.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "pipeline/schedules/best_greedy.h"
#include "pipeline/schedules/greedy.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {
namespace {

constexpr int kSlots = 6;  // F, I and W of two virtual stages

// Slots that a microbatch waits where it turns: on the last rank, at the loss, and on the last rank again.
struct Delays {
  int turn;
  int loss;
  int last_turn;
};

std::vector<std::vector<Action>> order_of(const Schedule& blank, const Pace& pace, const Delays& delays) {
  const int hops = blank.ranks() - 1;
  // For the first microbatch on rank 0, where ways up arrive last and ways down begin first.
  const int turn = hops * (pace.forward_down + pace.forward_up) + 1 + delays.turn;
  const int loss = turn + 1 + delays.loss;
  const int last_turn = loss + hops * (pace.backward_down + pace.backward_up) + 1 + delays.last_turn;
  std::vector<std::vector<Action>> order(blank.rows.size());
  for (int rank = 0; rank < blank.ranks(); ++rank) {
    const int up = 2 * blank.ranks() - 1 - rank;
    std::vector<std::pair<int, Action>> timed;
    for (int i = 0; i < blank.microbatches; ++i) {
      const int begin = kSlots * i;
      timed.emplace_back(begin + rank * pace.forward_down, compute(ActionKind::kForward, rank, i));
      timed.emplace_back(begin + turn - rank * pace.forward_up, compute(ActionKind::kForward, up, i));
      timed.emplace_back(begin + loss + rank * pace.backward_down, compute(ActionKind::kBackwardInput, up, i));
      timed.emplace_back(begin + last_turn - rank * pace.backward_up, compute(ActionKind::kBackwardInput, rank, i));
    }
    std::stable_sort(timed.begin(), timed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [slot, action] : timed) order[static_cast<std::size_t>(rank)].push_back(action);
  }
  return order;
}

struct Block {
  Delays delays;
  int lookahead;
};

// Delays of half a block or none; other values found no better schedule for 4, 8 and 16 ranks.
std::vector<Block> all_blocks() {
  std::vector<Block> blocks;
  for (const int turn : {0, kSlots / 2}) {
    for (const int loss : {0, kSlots / 2}) {
      for (const int last_turn : {0, 1}) {
        for (const int lookahead : {0, 2, 4}) blocks.push_back({{turn, loss, last_turn}, lookahead});
      }
    }
  }
  return blocks;
}

class Search {
 public:
  Search(const Schedule& blank, const Pace& pace, const Costs& costs, double memory_cap)
      : blank_(blank), pace_(pace), costs_(costs), memory_cap_(memory_cap) {}

  Schedule repeat(const Block& block) const {
    GreedyRules rules;
    rules.memory_cap = memory_cap_;
    rules.order = order_of(blank_, pace_, block.delays);
    rules.lookahead = block.lookahead;
    return run_greedy(blank_, costs_, rules);
  }

  bool is_within_cap(const Score& score) const { return score.peak <= memory_cap_ * (1 + 1e-9); }

  // The best blocks first; those that exceed the cap are left out.
  std::vector<Block> ranked(const std::vector<Block>& blocks) const {
    std::vector<std::pair<Score, Block>> scored;
    for (const Block& block : blocks) {
      const Score score = score_of(repeat(block), costs_);
      if (is_within_cap(score)) scored.emplace_back(score, block);
    }
    std::stable_sort(scored.begin(), scored.end(),
                     [](const auto& a, const auto& b) { return is_better(a.first, b.first); });
    std::vector<Block> best;
    for (const auto& [score, block] : scored) best.push_back(block);
    return best;
  }

 private:
  const Schedule& blank_;
  const Pace& pace_;
  const Costs& costs_;
  double memory_cap_;
};

// In long schedules only the repeated part counts, which a short one has as well: the few that are best there.
std::vector<Block> blocks_for(const Schedule& blank, const Pace& pace, const Costs& costs, double memory_cap) {
  constexpr std::size_t kMostTried = 3;
  std::vector<Block> blocks = all_blocks();
  Schedule shorter = blank;
  shorter.microbatches = std::max(2 * blank.ranks(), 128);
  if (!is_long(blank) || shorter.microbatches >= blank.microbatches) return blocks;
  std::vector<Block> best = Search(shorter, pace, costs, memory_cap).ranked(blocks);
  if (best.empty()) return blocks;
  best.resize(std::min(best.size(), kMostTried));
  return best;
}

}  // namespace

Schedule best_of_blocks(const Schedule& blank, const Pace& pace, const Costs& costs, double memory_cap) {
  Schedule best = best_greedy(blank, costs, memory_cap);
  Score best_score = score_of(best, costs);
  const Search search(blank, pace, costs, memory_cap);
  for (const Block& block : blocks_for(blank, pace, costs, memory_cap)) {
    Schedule next = search.repeat(block);
    const Score score = score_of(next, costs);
    if (!search.is_within_cap(score) || !is_better(score, best_score)) continue;
    best = std::move(next);
    best_score = score;
  }
  return best;
}

}  // namespace smdp::pipeline
