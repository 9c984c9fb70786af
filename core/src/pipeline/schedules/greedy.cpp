#include "pipeline/schedules/greedy.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <queue>
#include <utility>

#include "pipeline/data_edges.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

class Greedy {
 public:
  Greedy(Schedule blank, const Costs& costs, const GreedyRules& rules)
      : schedule_(std::move(blank)),
        costs_(costs),
        rules_(rules),
        microbatches_(schedule_.microbatches),
        local_(schedule_.rows.size()),
        reserve_(schedule_.rank_of.size(), 0),
        next_forward_(schedule_.rank_of.size(), 0),
        next_gradient_(schedule_.rank_of.size(), 0),
        forward_arrival_(schedule_.rank_of.size() * at(microbatches_), kUnknown),
        gradient_arrival_(forward_arrival_.size(), kUnknown),
        pending_(schedule_.rows.size()),
        held_(schedule_.rows.size(), 0),
        busy_until_(schedule_.rows.size(), 0) {
    for (int stage = schedule_.stages() - 1; stage >= 0; --stage) {
      auto& local = local_[at(schedule_.rank_of[at(stage)])];
      for (const int later : local) reserve_[at(stage)] += costs_.activation_bytes[at(later)];
      local.push_back(stage);  // last stage first, because later stages are more urgent
    }
    for (int i = 0; i < microbatches_; ++i) forward_arrival_[cell(0, i)] = 0;
    for (const auto& order : rules.order) order_.emplace_back(order.begin(), order.end());
  }

  Schedule run() {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) events_.emplace(0.0, rank);
    while (!events_.empty()) {
      const auto [now, rank] = events_.top();
      // One decision is enough: each input that a rank waits for has woken it once.
      while (!events_.empty() && events_.top() == Event(now, rank)) events_.pop();
      if (now < busy_until_[at(rank)]) continue;
      decide(rank, now);
    }
    return std::move(schedule_);
  }

 private:
  std::size_t cell(int stage, int microbatch) const { return at(stage) * at(microbatches_) + at(microbatch); }

  double next_gradient_at(int stage) const {
    const int next = next_gradient_[at(stage)];
    return next < microbatches_ ? gradient_arrival_[cell(stage, next)] : kUnknown;
  }

  double next_forward_at(int stage) const {
    const int next = next_forward_[at(stage)];
    return next < microbatches_ ? forward_arrival_[cell(stage, next)] : kUnknown;
  }

  bool may_forward(int stage, int rank) const {
    if (stage == 0 && rules_.active_microbatches > 0 &&
        next_forward_[0] - next_gradient_[0] >= rules_.active_microbatches) {
      return false;
    }
    // Reserves room for the stages that the microbatch has yet to visit here, so that the most advanced one can always
    // continue.
    const double need = held_[at(rank)] + costs_.activation_bytes[at(stage)] + reserve_[at(stage)];
    return rules_.memory_cap == 0 || need <= rules_.memory_cap * (1 + 1e-9);
  }

  void decide(int rank, double now) {
    if (!rules_.order.empty()) {
      decide_in_order(rank, now);
      return;
    }
    int gradient = -1;
    int forward = -1;
    double coming_gradient = kUnknown;
    double coming = kUnknown;
    double wake = kUnknown;
    for (const int stage : local_[at(rank)]) {
      const double gradient_at = next_gradient_at(stage);
      if (gradient_at <= now) {
        // The earliest microbatch, then the earlier stage, because others wait for both.
        if (gradient < 0 || next_gradient_[at(stage)] < next_gradient_[at(gradient)]) gradient = stage;
      } else {
        coming_gradient = std::min(coming_gradient, gradient_at);
      }
      const double forward_at = next_forward_at(stage);
      if (forward_at <= now) {
        if (forward < 0 && may_forward(stage, rank)) forward = stage;
      } else {
        wake = std::min(wake, forward_at);
        if (may_forward(stage, rank)) coming = std::min(coming, forward_at);
      }
    }
    coming = std::min(coming, coming_gradient);
    wake = std::min(wake, coming);
    if (gradient >= 0 && (rules_.is_backward_first || forward < 0 || !is_forward_turn(rank))) {
      start_gradient(gradient, rank, now);
    } else if (forward >= 0 && gradient < 0 &&
               coming_gradient - now < rules_.forward_patience * costs_.forward[at(forward)]) {
      events_.emplace(coming_gradient, rank);
    } else if (forward >= 0) {
      start_forward(forward, rank, now);
    } else if (!pending_[at(rank)].empty() && !is_worth_waiting(rank, coming - now)) {
      start_weight(rank, now);
    } else if (wake < kUnknown) {
      events_.emplace(wake, rank);
    }
  }

  void decide_in_order(int rank, double now) {
    std::deque<Action>& order = order_[at(rank)];
    double wake = kUnknown;
    bool is_blocked = false;  // an action is ready, but there is no room for it
    const std::size_t end = std::min(order.size(), 1 + static_cast<std::size_t>(rules_.lookahead));
    for (std::size_t i = 0; i < end; ++i) {
      const Action action = order[i];
      const bool is_forward = action.kind == ActionKind::kForward;
      const int microbatch = is_forward ? next_forward_[at(action.stage)] : next_gradient_[at(action.stage)];
      if (microbatch != action.microbatch) continue;
      const double ready = is_forward ? next_forward_at(action.stage) : next_gradient_at(action.stage);
      if (ready > now) {
        wake = std::min(wake, ready);
        continue;
      }
      // If nothing is left to free, the cap is exceeded, because the requested order cannot keep it. An action out of
      // turn leaves room for the one whose turn it is.
      const bool is_in_turn = i == 0;
      const double spare = is_in_turn ? 0 : costs_.activation_bytes[at(action.stage)];
      if (is_forward && !has_room_for(action.stage, rank, spare) && !(is_in_turn && pending_[at(rank)].empty())) {
        is_blocked = is_blocked || is_in_turn;
        continue;
      }
      order.erase(order.begin() + static_cast<std::ptrdiff_t>(i));
      is_forward ? start_forward(action.stage, rank, now) : start_gradient(action.stage, rank, now);
      return;
    }
    if (!pending_[at(rank)].empty() && (is_blocked || !is_worth_waiting(rank, wake - now))) {
      start_weight(rank, now);
    } else if (wake < kUnknown) {
      events_.emplace(wake, rank);
    }
  }

  bool has_room_for(int stage, int rank, double spare) const {
    const double need = held_[at(rank)] + costs_.activation_bytes[at(stage)] + spare;
    return rules_.memory_cap == 0 || need <= rules_.memory_cap * (1 + 1e-9);
  }

  // Alternates forward and backward if both are ready.
  bool is_forward_turn(int rank) const {
    const auto& row = schedule_.rows[at(rank)];
    for (auto action = row.rbegin(); action != row.rend(); ++action) {
      if (action->kind != ActionKind::kBackwardWeight) return action->kind != ActionKind::kForward;
    }
    return true;
  }

  bool is_worth_waiting(int rank, double gap) const {
    const int stage = pending_[at(rank)].front().first;
    return gap < rules_.patience * costs_.backward_weight[at(stage)];
  }

  void start_forward(int stage, int rank, double now) {
    const int microbatch = next_forward_[at(stage)]++;
    schedule_.rows[at(rank)].push_back(compute(ActionKind::kForward, stage, microbatch));
    held_[at(rank)] += costs_.activation_bytes[at(stage)];
    const double end = now + costs_.forward[at(stage)];
    finish(rank, end);
    if (stage + 1 < schedule_.stages()) {
      arrive(forward_arrival_, stage + 1, microbatch, rank, end);
    } else {
      arrive(gradient_arrival_, stage, microbatch, rank, end);
    }
  }

  void start_gradient(int stage, int rank, double now) {
    const int microbatch = next_gradient_[at(stage)]++;
    const ActionKind kind = rules_.is_split ? ActionKind::kBackwardInput : ActionKind::kBackward;
    schedule_.rows[at(rank)].push_back(compute(kind, stage, microbatch));
    double end = now + costs_.backward_input[at(stage)];
    if (rules_.is_split) {
      pending_[at(rank)].emplace_back(stage, microbatch);
      held_[at(rank)] -= freed_by_gradient(stage);
    } else {
      end += costs_.backward_weight[at(stage)];
      held_[at(rank)] -= costs_.activation_bytes[at(stage)];
    }
    finish(rank, end);
    if (stage > 0) arrive(gradient_arrival_, stage - 1, microbatch, rank, end);
  }

  double freed_by_gradient(int stage) const {
    return costs_.stash_bytes.empty() ? 0 : costs_.activation_bytes[at(stage)] - costs_.stash_bytes[at(stage)];
  }

  void start_weight(int rank, double now) {
    const auto [stage, microbatch] = pending_[at(rank)].front();
    pending_[at(rank)].pop_front();
    schedule_.rows[at(rank)].push_back(compute(ActionKind::kBackwardWeight, stage, microbatch));
    held_[at(rank)] -= costs_.activation_bytes[at(stage)] - freed_by_gradient(stage);
    finish(rank, now + costs_.backward_weight[at(stage)]);
  }

  void finish(int rank, double end) {
    busy_until_[at(rank)] = end;
    events_.emplace(end, rank);
  }

  void arrive(std::vector<double>& arrivals, int stage, int microbatch, int from, double end) {
    const int to = schedule_.rank_of[at(stage)];
    const double arrival = end + (to == from ? 0 : costs_.hop);
    arrivals[cell(stage, microbatch)] = arrival;
    if (to != from) events_.emplace(std::max(arrival, busy_until_[at(to)]), to);
  }

  using Event = std::pair<double, int>;

  Schedule schedule_;
  const Costs& costs_;
  const GreedyRules& rules_;
  const int microbatches_;
  std::vector<std::vector<int>> local_;  // per rank, its stages
  std::vector<double> reserve_;
  std::vector<int> next_forward_;
  std::vector<int> next_gradient_;
  std::vector<std::deque<Action>> order_;  // the remainder of rules_.order
  std::vector<double> forward_arrival_;
  std::vector<double> gradient_arrival_;
  std::vector<std::deque<std::pair<int, int>>> pending_;  // weight gradients, per rank
  std::vector<double> held_;
  std::vector<double> busy_until_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

Schedule run_greedy(Schedule blank, const Costs& costs, const GreedyRules& rules) {
  return Greedy(std::move(blank), costs, rules).run();
}

}  // namespace smdp::pipeline
