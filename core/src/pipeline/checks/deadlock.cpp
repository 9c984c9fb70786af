// Runs the transfers of all rows on three kinds of transport. Computations only take time here: local order and
// acyclicity have shown that their inputs are there. The exception is a single stream, where a receive does not block
// its row but the computation does. A reduction of a tied group, or of the norm, blocks its row until all ranks that
// take part are there.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/checks/checks.h"

namespace smdp::pipeline {
namespace {

// The transfers between two ranks.
struct Pair {
  int low;
  int high;
  std::deque<int> issued[2];  // single stream: indices in the rows, of the lower and the higher rank
  int under_way[2] = {0, 0};  // buffered: messages from the lower to the higher rank, and back
};

bool belong_together(const Action& a, const Action& b) {
  const Action& send = is_send(a.kind) ? a : b;
  const Action& receive = is_send(a.kind) ? b : a;
  return is_send(send.kind) && is_receive(receive.kind) && send.stage == receive.other_stage &&
         send.other_stage == receive.stage && send.microbatch == receive.microbatch &&
         (send.kind == ActionKind::kSendForward) == (receive.kind == ActionKind::kRecvForward);
}

class Runner {
 public:
  Runner(const Schedule& schedule, const DataEdges& edges, Transport transport, int buffers)
      : schedule_(schedule),
        edges_(edges),
        transport_(transport),
        buffers_(buffers),
        next_(schedule.rows.size(), 0),
        pairs_(schedule.rows.size()) {
    if (transport == Transport::kSingleStream) {
      value_state_.resize(at(edges.count()) * at(schedule.microbatches), 0);
      gradient_state_.resize(value_state_.size(), 0);
    }
    for (const auto& row : schedule.rows) {
      std::set<int> groups;
      for (const Action& action : row) {
        if (is_joint(action.kind)) groups.insert(group_of(action));
      }
      for (const int group : groups) ++joint_[group].members;
    }
  }

  // Advances rank by rank until none moves. Returns the ranks that did not reach their end.
  std::vector<int> run() {
    std::vector<int> queue;
    for (int rank = schedule_.ranks() - 1; rank >= 0; --rank) queue.push_back(rank);
    std::vector<char> is_queued(at(schedule_.ranks()), 1);
    while (!queue.empty()) {
      const int rank = queue.back();
      queue.pop_back();
      is_queued[at(rank)] = 0;
      moved_.clear();
      advance(rank);
      for (const int other : moved_) {
        if (is_queued[at(other)] != 0) continue;
        is_queued[at(other)] = 1;
        queue.push_back(other);
      }
    }
    std::vector<int> stuck;
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      if (next_[at(rank)] < static_cast<int>(schedule_.rows[at(rank)].size())) stuck.push_back(rank);
    }
    // A stream that holds transfers after all rows have ended is also stuck.
    for (const auto& pairs : pairs_) {
      for (const Pair& pair : pairs) {
        for (const int side : {0, 1}) {
          const int rank = side == 0 ? pair.low : pair.high;
          if (pair.issued[side].empty() || std::find(stuck.begin(), stuck.end(), rank) != stuck.end()) continue;
          next_[at(rank)] = pair.issued[side].front();
          stuck.push_back(rank);
        }
      }
    }
    return stuck;
  }

  int place_of(int rank) const { return next_[at(rank)]; }

 private:
  struct Joint {
    int members = 0;
    std::set<int> arrived;  // ranks
  };

  const Action& at_head(int rank) const { return schedule_.rows[at(rank)][at(next_[at(rank)])]; }

  bool has_ended(int rank) const { return next_[at(rank)] >= static_cast<int>(schedule_.rows[at(rank)].size()); }

  bool is_wrong(const Action& transfer, int rank) const {
    return transfer.peer < 0 || transfer.peer >= schedule_.ranks() || transfer.peer == rank ||
           !is_in_range(schedule_, transfer) || edges_.of(transfer) < 0;
  }

  Pair& pair_of(int a, int b) {
    auto& pairs = pairs_[at(std::min(a, b))];
    for (Pair& pair : pairs) {
      if (pair.high == std::max(a, b)) return pair;
    }
    pairs.push_back({std::min(a, b), std::max(a, b), {}, {0, 0}});
    return pairs.back();
  }

  void advance(int rank) {
    for (; !has_ended(rank); ++next_[at(rank)]) {
      const Action& action = at_head(rank);
      if (is_transfer(action.kind)) {
        // Transfers that name no peer of this schedule are left to the check of matching.
        if (is_wrong(action, rank)) continue;
        if (!transfer(action, rank)) return;
      } else if (is_joint(action.kind)) {
        if (!enter(joint_[group_of(action)], rank)) return;
      } else if (transport_ == Transport::kSingleStream && is_compute(action.kind) && !has_inputs(action)) {
        return;
      }
    }
  }

  // Returns whether all members are there.
  bool enter(Joint& group, int rank) {
    const bool is_new = group.arrived.insert(rank).second;
    if (static_cast<int>(group.arrived.size()) < group.members) return false;
    if (is_new) moved_.insert(moved_.end(), group.arrived.begin(), group.arrived.end());
    return true;
  }

  bool transfer(const Action& action, int rank) {
    switch (transport_) {
      case Transport::kRendezvous: {
        if (has_ended(action.peer)) return false;
        const Action& other = at_head(action.peer);
        if (!is_transfer(other.kind) || other.peer != rank || !belong_together(action, other)) return false;
        ++next_[at(action.peer)];
        moved_.push_back(action.peer);
        return true;
      }
      case Transport::kBuffered: {
        const bool sends = is_send(action.kind);
        Pair& pair = pair_of(rank, action.peer);
        int& under_way = pair.under_way[(rank == pair.low) == sends ? 0 : 1];
        if (sends ? under_way >= buffers_ : under_way == 0) return false;
        under_way += sends ? 1 : -1;
        moved_.push_back(action.peer);
        return true;
      }
      case Transport::kSingleStream:
        issue(action, rank);
        return true;
    }
    return true;
  }

  // Runs the heads of both sides' streams if they belong together.
  void issue(const Action& action, int rank) {
    Pair& pair = pair_of(rank, action.peer);
    pair.issued[rank == pair.low ? 0 : 1].push_back(next_[at(rank)]);
    if (is_receive(action.kind)) state(action) = kIssued;
    while (!pair.issued[0].empty() && !pair.issued[1].empty()) {
      const Action& low = schedule_.rows[at(pair.low)][at(pair.issued[0].front())];
      const Action& high = schedule_.rows[at(pair.high)][at(pair.issued[1].front())];
      if (!belong_together(low, high)) return;
      state(is_receive(low.kind) ? low : high) = kArrived;
      pair.issued[0].pop_front();
      pair.issued[1].pop_front();
      moved_.push_back(action.peer);
    }
  }

  static constexpr char kIssued = 1;
  static constexpr char kArrived = 2;

  char& state(const Action& receive) {
    auto& states = receive.kind == ActionKind::kRecvForward ? value_state_ : gradient_state_;
    return states[at(edges_.of(receive)) * at(schedule_.microbatches) + at(receive.microbatch)];
  }

  // Returns whether none of the receives that the row has issued for it is still in progress.
  bool has_inputs(const Action& action) const {
    bool has_all = true;
    for_each_part(action, [&](const Action& part) {
      if (!is_in_range(schedule_, part) || part.kind == ActionKind::kBackwardWeight) return;
      const bool is_forward = part.kind == ActionKind::kForward;
      const auto& states = is_forward ? value_state_ : gradient_state_;
      for (const int edge : is_forward ? edges_.in(part.stage) : edges_.out(part.stage)) {
        has_all = has_all && states[at(edge) * at(schedule_.microbatches) + at(part.microbatch)] != kIssued;
      }
    });
    return has_all;
  }

  const Schedule& schedule_;
  const DataEdges& edges_;
  const Transport transport_;
  const int buffers_;
  std::vector<int> next_;
  std::vector<std::vector<Pair>> pairs_;  // by the lower rank; a rank has few peers
  std::map<int, Joint> joint_;
  std::vector<int> moved_;
  std::vector<char> value_state_;
  std::vector<char> gradient_state_;
};

std::string describe(Transport transport, int buffers) {
  switch (transport) {
    case Transport::kRendezvous:
      return "without buffers (rendezvous)";
    case Transport::kBuffered:
      return "with " + std::to_string(buffers) + " buffered message(s) per direction";
    case Transport::kSingleStream:
      break;
  }
  return "with one in-order stream per pair of ranks (as NCCL)";
}

}  // namespace

Found check_deadlock(const Schedule& schedule, const DataEdges& edges, const VerifyOptions& options) {
  if (!has_transfers(schedule)) return std::nullopt;
  for (const Transport transport : options.transports) {
    Runner runner(schedule, edges, transport, options.buffers);
    const std::vector<int> stuck = runner.run();
    if (stuck.empty()) continue;
    std::string waiting;
    for (const int rank : stuck) {
      const Action& action = schedule.rows[at(rank)][at(runner.place_of(rank))];
      waiting += (waiting.empty() ? "" : ", ") + std::string("rank ") + std::to_string(rank) + " at " + to_text(action);
    }
    return violation_at(
        Check::kDeadlock, schedule, stuck.front(), runner.place_of(stuck.front()),
        "on a transport " + describe(transport, options.buffers) + " these ranks wait forever: " + waiting);
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
