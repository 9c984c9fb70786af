// All members must enter collectives in one order: tied reductions by the ranks that hold a stage of the group, the
// norm of the gradients by all ranks, and these and the operations on a rank's own shards by the same rank of every
// replica.
#include <algorithm>
#include <string>
#include <vector>

#include "common/argument.h"
#include "pipeline/checks/checks.h"

namespace smdp::pipeline {
namespace {

bool is_collective(ActionKind kind) {
  return kind == ActionKind::kUnshard || kind == ActionKind::kReduceGrad || is_joint(kind);
}

std::vector<int> collectives_of(const std::vector<Action>& row, bool only_joint) {
  std::vector<int> places;
  for (int index = 0; index < static_cast<int>(row.size()); ++index) {
    const ActionKind kind = row[at(index)].kind;
    if (only_joint ? is_joint(kind) : is_collective(kind)) places.push_back(index);
  }
  return places;
}

bool is_member(const Schedule& schedule, int group, int rank) {
  if (group == kNormGroup) return true;
  const auto& stages = schedule.tied[at(group)];
  return std::any_of(stages.begin(), stages.end(), [&](int stage) { return schedule.rank_of[at(stage)] == rank; });
}

// Compares how often each rank enters the norm, which without tied groups is the only question of order.
Found check_norm(const Schedule& schedule, const std::vector<std::vector<int>>& joint) {
  const auto norms_of = [&](int rank) {
    std::vector<int> places;
    for (const int index : joint[at(rank)]) {
      if (schedule.rows[at(rank)][at(index)].kind == ActionKind::kReduceNorm) places.push_back(index);
    }
    return places;
  };
  const std::vector<int> first = norms_of(0);
  for (int rank = 1; rank < schedule.ranks(); ++rank) {
    const std::vector<int> norms = norms_of(rank);
    if (norms.size() == first.size()) continue;
    const bool has_more = norms.size() > first.size();
    return violation_at(Check::kCollectiveOrder, schedule, has_more ? rank : 0,
                        has_more ? norms[first.size()] : first[norms.size()],
                        "rank " + std::to_string(has_more ? 0 : rank) + ", which is also a member, does not enter it");
  }
  return std::nullopt;
}

Found check_joint(const Schedule& schedule) {
  std::vector<std::vector<int>> joint(schedule.rows.size());
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    joint[at(rank)] = collectives_of(row, true);
    for (const int index : joint[at(rank)]) {
      const int group = row[at(index)].other_stage;
      if (row[at(index)].kind == ActionKind::kReduceNorm) continue;
      if (group < 0 || group >= static_cast<int>(schedule.tied.size()) || !is_member(schedule, group, rank)) {
        return violation_at(Check::kCollectiveOrder, schedule, rank, index,
                            "the rank is not a member of group " + std::to_string(group) + "; the schedule has " +
                                std::to_string(schedule.tied.size()) + " tied groups");
      }
    }
  }
  if (Found found = check_norm(schedule, joint)) return found;
  // Two ranks meet in the groups of which both are members, where their order must agree. A rank in no tied group has
  // only the norm.
  std::vector<char> is_tied(schedule.rows.size(), 0);
  for (const std::vector<int>& group : schedule.tied) {
    for (const int stage : group) is_tied[at(schedule.rank_of[at(stage)])] = 1;
  }
  for (int a = 0; a < schedule.ranks(); ++a) {
    for (int b = a + 1; b < schedule.ranks() && is_tied[at(a)] != 0; ++b) {
      if (is_tied[at(b)] == 0) continue;
      const auto shared = [&](int rank) {
        std::vector<int> places;
        for (const int index : joint[at(rank)]) {
          if (is_member(schedule, group_of(schedule.rows[at(rank)][at(index)]), rank == a ? b : a)) {
            places.push_back(index);
          }
        }
        return places;
      };
      const std::vector<int> of_a = shared(a);
      const std::vector<int> of_b = shared(b);
      for (std::size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i) {
        const int rank = i < of_b.size() ? b : a;
        const int index = i < of_b.size() ? of_b[i] : of_a[i];
        if (i >= of_a.size() || i >= of_b.size()) {
          return violation_at(
              Check::kCollectiveOrder, schedule, rank, index,
              "rank " + std::to_string(rank == a ? b : a) + ", which is also a member, does not enter it");
        }
        if (group_of(schedule.rows[at(a)][at(of_a[i])]) == group_of(schedule.rows[at(b)][at(of_b[i])])) continue;
        return violation_at(
            Check::kCollectiveOrder, schedule, rank, index,
            "rank " + std::to_string(a) + " enters " + to_text(schedule.rows[at(a)][at(of_a[i])]) + " at this point");
      }
    }
  }
  return std::nullopt;
}

Found check_replica(const Schedule& schedule, const Schedule& replica) {
  for (int rank = 0; rank < std::min(schedule.ranks(), replica.ranks()); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    const auto& other = replica.rows[at(rank)];
    const std::vector<int> ours = collectives_of(row, false);
    const std::vector<int> theirs = collectives_of(other, false);
    for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
      const bool is_equal = i < ours.size() && i < theirs.size() && row[at(ours[i])] == other[at(theirs[i])];
      if (is_equal) continue;
      const std::string they = i < theirs.size() ? to_text(other[at(theirs[i])]) : "nothing";
      if (i < ours.size()) {
        return violation_at(Check::kCollectiveOrder, schedule, rank, ours[i],
                            "the same rank of replica '" + shown(replica.name) + "' enters " + they + " at this point");
      }
      return violation_of(Check::kCollectiveOrder, schedule, rank, other[at(theirs[i])],
                          "replica '" + shown(replica.name) + "' enters it, but this rank does not");
    }
  }
  return std::nullopt;
}

}  // namespace

Found check_collective_order(const Schedule& schedule, const VerifyOptions& options) {
  if (Found found = check_joint(schedule)) return found;
  for (const Schedule& replica : options.replicas) {
    if (Found found = check_replica(schedule, replica)) return found;
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
