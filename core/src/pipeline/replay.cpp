#include "pipeline/replay.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace smdp::pipeline {
namespace {

constexpr double kNever = -1;

class Player {
 public:
  Player(const Schedule& schedule, const DataEdges& edges, const Costs& costs, ReplayMode mode)
      : schedule_(schedule),
        edges_(edges),
        costs_(costs),
        mode_(mode),
        microbatches_(at(schedule.microbatches)),
        clock_(at(schedule.ranks()), 0),
        next_(at(schedule.ranks()), 0),
        is_half_done_(at(schedule.ranks()), 0),
        is_queued_(at(schedule.ranks()), 1),
        forward_end_(cells(schedule.stages()), kNever),
        gradient_end_(cells(schedule.stages()), kNever),
        forward_arrival_(cells(edges.count()), kNever),
        backward_arrival_(cells(edges.count()), kNever) {
    for (const auto& row : schedule.rows) {
      for (const Action& action : row) {
        has_transfers_ = has_transfers_ || (mode == ReplayMode::kTimed && is_transfer(action.kind));
        if (is_joint(action.kind)) ++joint_[group_of(action)].members;
      }
    }
  }

  Replay run() {
    Replay result;
    result.timeline.resize(schedule_.rows.size());
    for (std::size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      result.timeline[rank].resize(schedule_.rows[rank].size());
    }
    std::vector<int> queue;
    for (int rank = schedule_.ranks() - 1; rank >= 0; --rank) queue.push_back(rank);
    while (!queue.empty()) {
      const int rank = queue.back();
      queue.pop_back();
      is_queued_[at(rank)] = 0;
      woken_.clear();
      advance(rank, result.timeline[at(rank)]);
      for (const int woken : woken_) {
        if (is_queued_[at(woken)] == 0) {
          is_queued_[at(woken)] = 1;
          queue.push_back(woken);
        }
      }
    }
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      const auto& row = schedule_.rows[at(rank)];
      if (next_[at(rank)] == row.size()) continue;
      const Action& action = row[next_[at(rank)]];
      Action missing;
      ready_at(is_half_done_[at(rank)] != 0 ? backward_of(action) : action, &missing);
      result.stuck.push_back({rank, static_cast<int>(next_[at(rank)]), missing});
    }
    for (const auto& [ranks, link] : links_) result.links.push_back(link.use);
    return result;
  }

 private:
  struct Joint {
    int members = 0;
    std::vector<int> arrived;  // ranks
    double last = 0;
  };
  struct Link {
    LinkUse use;
    double end = 0;
  };

  std::size_t cells(int count) const { return at(count) * microbatches_; }
  std::size_t cell(int row, int microbatch) const { return at(row) * microbatches_ + at(microbatch); }

  // Returns the latest time of what the action needs, or kNever and what is missing.
  double ready_at(const Action& action, Action* missing) const {
    double ready = 0;
    switch (action.kind) {
      case ActionKind::kForward: {
        for (const int edge : edges_.in(action.stage)) {
          const double arrival = forward_arrival_[cell(edge, action.microbatch)];
          if (arrival == kNever) {
            *missing = producer(edges_.source(edge), action.stage, action.microbatch, true);
            return kNever;
          }
          ready = std::max(ready, arrival);
        }
        return ready;
      }
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput: {
        if (forward_end_[cell(action.stage, action.microbatch)] == kNever) {
          *missing = {.kind = ActionKind::kForward, .stage = action.stage, .microbatch = action.microbatch};
          return kNever;
        }
        for (const int edge : edges_.out(action.stage)) {
          const double arrival = backward_arrival_[cell(edge, action.microbatch)];
          if (arrival == kNever) {
            *missing = producer(edges_.target(edge), action.stage, action.microbatch, false);
            return kNever;
          }
          ready = std::max(ready, arrival);
        }
        return ready;
      }
      case ActionKind::kBackwardWeight:
      case ActionKind::kSendBackward:
        *missing = {.kind = ActionKind::kBackwardInput, .stage = action.stage, .microbatch = action.microbatch};
        return gradient_end_[cell(action.stage, action.microbatch)];
      case ActionKind::kSendForward:
        *missing = {.kind = ActionKind::kForward, .stage = action.stage, .microbatch = action.microbatch};
        return forward_end_[cell(action.stage, action.microbatch)];
      case ActionKind::kOverlap: {
        const double forward = ready_at(forward_of(action), missing);
        if (forward == kNever) return kNever;
        const double backward = ready_at(backward_of(action), missing);
        return backward == kNever ? kNever : std::max(forward, backward);
      }
      case ActionKind::kReduceTied:
      case ActionKind::kReduceNorm: {
        const Joint& group = joint_.at(group_of(action));
        *missing = action;
        return static_cast<int>(group.arrived.size()) < group.members ? kNever : group.last;
      }
      default:
        return 0;
    }
  }

  // Returns the action that makes the value that `consumer` waits for.
  Action producer(int stage, int consumer, int microbatch, bool is_forward) const {
    Action action{.stage = stage, .microbatch = microbatch};
    if (has_transfers_ && schedule_.rank_of[at(stage)] != schedule_.rank_of[at(consumer)]) {
      action.kind = is_forward ? ActionKind::kSendForward : ActionKind::kSendBackward;
      action.other_stage = consumer;
    } else {
      action.kind = is_forward ? ActionKind::kForward : ActionKind::kBackwardInput;
    }
    return action;
  }

  double duration(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kForward:
        return costs_.forward[at(action.stage)];
      case ActionKind::kBackwardInput:
        return costs_.backward_input[at(action.stage)];
      case ActionKind::kBackwardWeight:
        return costs_.backward_weight[at(action.stage)];
      case ActionKind::kBackward:
        return costs_.backward_input[at(action.stage)] + costs_.backward_weight[at(action.stage)];
      case ActionKind::kOverlap:
        return duration(forward_of(action)) + duration(backward_of(action));
      case ActionKind::kUnshard:
        return costs_.unshard;
      case ActionKind::kReduceGrad:
        return costs_.reduce_grad;
      case ActionKind::kReduceTied:
        return costs_.reduce_tied;
      case ActionKind::kReduceNorm:
        return costs_.reduce_norm;
      case ActionKind::kOffload:
        return costs_.offload;
      case ActionKind::kReload:
        return costs_.reload;
      default:
        return 0;
    }
  }

  bool is_playable(const Action& action) const {
    if (is_transfer(action.kind) && mode_ == ReplayMode::kOrderOnly) return false;
    return !(is_compute(action.kind) || is_transfer(action.kind)) || is_in_range(schedule_, action);
  }

  void advance(int rank, std::vector<Interval>& timeline) {
    const auto& row = schedule_.rows[at(rank)];
    double& clock = clock_[at(rank)];
    std::size_t& next = next_[at(rank)];
    for (; next < row.size(); ++next) {
      const Action& action = row[next];
      if (!is_playable(action)) {
        timeline[next] = {clock, clock};
        continue;
      }
      if (is_joint(action.kind)) arrive(joint_[group_of(action)], rank);
      if (action.kind == ActionKind::kOverlap && mode_ == ReplayMode::kTimed) {
        if (is_half_done_[at(rank)] == 0) {
          if (!play(forward_of(action), rank, timeline[next])) return;
          is_half_done_[at(rank)] = 1;
        }
        const double start = timeline[next].start;
        if (!play(backward_of(action), rank, timeline[next])) return;
        timeline[next].start = start;
        is_half_done_[at(rank)] = 0;
      } else if (!play(action, rank, timeline[next])) {
        return;
      }
    }
  }

  // Returns false if the action must wait.
  bool play(const Action& action, int rank, Interval& times) {
    Action missing;
    const double ready = ready_at(action, &missing);
    if (ready == kNever) return false;
    double& clock = clock_[at(rank)];
    const double start = std::max(clock, ready);
    clock = start + duration(action);
    times = {start, clock};
    for_each_part(action, [&](const Action& part) { finish(part, rank, clock); });
    return true;
  }

  void arrive(Joint& group, int rank) {
    if (std::find(group.arrived.begin(), group.arrived.end(), rank) != group.arrived.end()) return;
    group.arrived.push_back(rank);
    group.last = std::max(group.last, clock_[at(rank)]);
    if (static_cast<int>(group.arrived.size()) >= group.members) {
      for (const int member : group.arrived) wake(member, rank);
    }
  }

  void finish(const Action& action, int rank, double end) {
    switch (action.kind) {
      case ActionKind::kForward:
        forward_end_[cell(action.stage, action.microbatch)] = end;
        for (const int edge : edges_.out(action.stage)) {
          hand_over(edge, edges_.target(edge), action.microbatch, rank, end, forward_arrival_);
        }
        break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        gradient_end_[cell(action.stage, action.microbatch)] = end;
        for (const int edge : edges_.in(action.stage)) {
          hand_over(edge, edges_.source(edge), action.microbatch, rank, end, backward_arrival_);
        }
        break;
      case ActionKind::kSendForward:
      case ActionKind::kSendBackward: {
        const int edge = edges_.of(action);
        if (edge < 0) break;
        const bool is_forward = action.kind == ActionKind::kSendForward;
        auto& arrivals = is_forward ? forward_arrival_ : backward_arrival_;
        const int to = schedule_.rank_of[at(action.other_stage)];
        // The first half of a pair has ended before the row comes to its send.
        const auto& ends = is_forward ? forward_end_ : gradient_end_;
        const double made = ends[cell(action.stage, action.microbatch)];
        arrivals[cell(edge, action.microbatch)] = made + costs_.hop;
        use_link(rank, to, made);
        wake(to, rank);
        break;
      }
      default:
        break;
    }
  }

  void hand_over(int edge, int consumer, int microbatch, int rank, double end, std::vector<double>& arrivals) {
    const int to = schedule_.rank_of[at(consumer)];
    if (to == rank) {
      arrivals[cell(edge, microbatch)] = end;
    } else if (!has_transfers_) {
      arrivals[cell(edge, microbatch)] = end + costs_.hop;
      use_link(rank, to, end);
      wake(to, rank);
    }
  }

  void use_link(int from, int to, double start) {
    // A rank has few peers, and mostly the same one as last time.
    if (last_link_ == nullptr || last_link_->use.from != from || last_link_->use.to != to) {
      last_link_ = &links_[{from, to}];
      last_link_->use.from = from;
      last_link_->use.to = to;
    }
    Link& link = *last_link_;
    ++link.use.transfers;
    // A rank mostly sends in the order of time, but a table may differ.
    const double end = std::max(link.end, start + costs_.hop);
    link.use.busy += end - std::max(start, link.end);
    link.end = end;
  }

  void wake(int rank, int self) {
    if (rank != self && is_queued_[at(rank)] == 0) woken_.push_back(rank);
  }

  const Schedule& schedule_;
  const DataEdges& edges_;
  const Costs& costs_;
  const ReplayMode mode_;
  const std::size_t microbatches_;
  bool has_transfers_ = false;
  std::vector<double> clock_;
  std::vector<std::size_t> next_;
  std::vector<char> is_half_done_;  // of the pair at next_
  std::vector<char> is_queued_;
  std::vector<int> woken_;
  // By stage or edge, and microbatch.
  std::vector<double> forward_end_;
  std::vector<double> gradient_end_;
  std::vector<double> forward_arrival_;
  std::vector<double> backward_arrival_;
  std::map<int, Joint> joint_;
  std::map<std::pair<int, int>, Link> links_;
  Link* last_link_ = nullptr;
};

bool is_what(const Action& wanted, const Action& action) {
  bool is_it = false;
  for_each_part(action, [&](const Action& part) {
    const bool is_same_kind =
        part.kind == wanted.kind || (is_input_gradient(part.kind) && is_input_gradient(wanted.kind));
    const bool needs_other = is_transfer(wanted.kind) || wanted.kind == ActionKind::kReduceTied;
    // Each member of a tied group enters it with its own stage.
    const bool is_same_place =
        wanted.kind == ActionKind::kReduceTied || (part.stage == wanted.stage && part.microbatch == wanted.microbatch);
    is_it = is_it || (is_same_kind && is_same_place && (!needs_other || part.other_stage == wanted.other_stage));
  });
  return is_it;
}

// Returns the place of an awaited action; {-1, -1} if there is none. Ranks that are at the action also wait for it.
std::pair<int, int> find(const Schedule& schedule, const Action& wanted, const std::vector<const Stuck*>& stuck_at) {
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const bool waits_itself =
          is_joint(wanted.kind) && stuck_at[at(rank)] != nullptr && stuck_at[at(rank)]->index == index;
      if (!waits_itself && is_what(wanted, row[at(index)])) return {rank, index};
    }
  }
  return {-1, -1};
}

}  // namespace

Replay replay(const Schedule& schedule, const DataEdges& edges, const Costs& costs, ReplayMode mode) {
  return Player(schedule, edges, costs, mode).run();
}

std::string explain(const Schedule& schedule, const std::vector<Stuck>& stuck) {
  // Every stuck rank waits for an action behind another stuck rank's place. Following them ends in a cycle, or at an
  // action that does not exist.
  std::vector<const Stuck*> of_rank(at(schedule.ranks()), nullptr);
  for (const Stuck& one : stuck) of_rank[at(one.rank)] = &one;
  std::vector<int> seen_at(at(schedule.ranks()), -1);
  std::vector<std::string> steps;
  const Stuck* now = stuck.empty() ? nullptr : &stuck.front();
  while (now != nullptr && seen_at[at(now->rank)] < 0) {
    seen_at[at(now->rank)] = static_cast<int>(steps.size());
    const std::string blocked = to_text(schedule.rows[at(now->rank)][at(now->index)]);
    const auto [rank, index] = find(schedule, now->waits_for, of_rank);
    std::string step = "rank " + std::to_string(now->rank) + " at " + blocked + " waits for ";
    if (rank < 0) return step + to_text(now->waits_for) + ", which is in no row";
    step += to_text(schedule.rows[at(rank)][at(index)]) + ", entry " + std::to_string(index) + " of rank " +
            std::to_string(rank);
    steps.push_back(std::move(step));
    now = of_rank[at(rank)];
  }
  std::string text;
  const std::size_t begin = now == nullptr ? 0 : at(seen_at[at(now->rank)]);
  for (std::size_t i = begin; i < steps.size(); ++i) text += (i == begin ? "" : "; ") + steps[i];
  return text;
}

}  // namespace smdp::pipeline
