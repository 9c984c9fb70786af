// A step must leave nothing behind: no activations, no received values, no unsharded stage, nothing offloaded. Steps of
// training and evaluation may then follow each other in any order, if they have the same stages on the same ranks.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "common/argument.h"
#include "pipeline/checks/checks.h"

namespace smdp::pipeline {
namespace {

enum Kept : std::uint8_t { kActivation = 1, kValue = 2, kGradient = 4, kOffloaded = 8, kParameters = 16 };

struct Change {
  std::uint8_t keeps;
  std::uint8_t drops;
};

Change change_of(ActionKind kind, bool is_forward_only) {
  switch (kind) {
    case ActionKind::kForward:
      return {is_forward_only ? std::uint8_t{0} : std::uint8_t{kActivation}, kValue};
    case ActionKind::kBackward:
      return {0, kGradient | kActivation};
    case ActionKind::kBackwardInput:
      return {0, kGradient};
    case ActionKind::kBackwardWeight:
      return {0, kActivation};
    case ActionKind::kRecvForward:
      return {kValue, 0};
    case ActionKind::kRecvBackward:
      return {kGradient, 0};
    case ActionKind::kUnshard:
      return {kParameters, 0};
    case ActionKind::kReshard:
      return {0, kParameters};
    case ActionKind::kOffload:
      return {kOffloaded, 0};
    case ActionKind::kReload:
      return {0, kOffloaded};
    default:
      return {0, 0};
  }
}

const char* describe(std::uint8_t kept) {
  if ((kept & kActivation) != 0) return "its activations are still kept";
  if ((kept & (kValue | kGradient)) != 0) return "the value that it received has not been used";
  if ((kept & kOffloaded) != 0) return "the activations that it offloaded have not been reloaded";
  return "its parameters are still unsharded";
}

class Leftovers {
 public:
  explicit Leftovers(const Schedule& schedule)
      : schedule_(schedule), kept_(schedule.rank_of.size() * (at(schedule.microbatches) + 1), 0) {}

  // Returns what a row keeps at its end: the action that left it, and a description.
  std::optional<std::pair<int, const char*>> of(const std::vector<Action>& row) {
    long count = 0;
    for (const Action& action : row) {
      for_each_part(action, [&](const Action& part) { count += apply(part); });
    }
    if (count == 0) return std::nullopt;  // kept_ is then unchanged
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const char* what = nullptr;
      for_each_part(row[at(index)], [&](const Action& part) {
        if (!is_in_range(schedule_, part)) return;
        const std::uint8_t left = change_of(part.kind, schedule_.forward_only).keeps & cell(part);
        if (left != 0) what = describe(left);
      });
      if (what != nullptr) return std::pair(index, what);
    }
    return std::nullopt;
  }

 private:
  // Per stage: its microbatches, and one entry for its parameters.
  std::uint8_t& cell(const Action& action) {
    return kept_[at(action.stage) * (at(schedule_.microbatches) + 1) + at(action.microbatch + 1)];
  }

  // Returns by how much the number of kept things has grown.
  int apply(const Action& action) {
    const Change change = change_of(action.kind, schedule_.forward_only);
    if ((change.keeps | change.drops) == 0 || !is_in_range(schedule_, action)) return 0;
    std::uint8_t& kept = cell(action);
    const auto now = static_cast<std::uint8_t>((kept & ~change.drops) | change.keeps);
    const int grown = std::popcount(now) - std::popcount(kept);
    kept = now;
    return grown;
  }

  const Schedule& schedule_;
  std::vector<std::uint8_t> kept_;
};

}  // namespace

Found check_alternation(const Schedule& schedule, const VerifyOptions& options) {
  std::vector<const Schedule*> all{&schedule};
  for (const Schedule& other : options.alternates) all.push_back(&other);
  for (const Schedule* one : all) {
    Leftovers leftovers(*one);
    for (int rank = 0; rank < one->ranks(); ++rank) {
      if (const auto left = leftovers.of(one->rows[at(rank)])) {
        return violation_at(Check::kAlternation, *one, rank, left->first,
                            std::string(left->second) + " when the step ends; a step must leave nothing behind");
      }
    }
    for (int stage = 0; stage < std::max(schedule.stages(), one->stages()); ++stage) {
      const int ours = stage < schedule.stages() ? schedule.rank_of[at(stage)] : -1;
      const int theirs = stage < one->stages() ? one->rank_of[at(stage)] : -1;
      if (ours == theirs) continue;
      return violation_of(
          Check::kAlternation, schedule, ours < 0 ? 0 : ours, {.kind = ActionKind::kForward, .stage = stage},
          "stage " + std::to_string(stage) + " is on rank " + std::to_string(ours) + ", but in the alternate '" +
              shown(one->name) + "' on rank " + std::to_string(theirs) + " (-1: on no rank)");
    }
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
