// A step leaves nothing behind: no activation, no received value, no stage unsharded, nothing offloaded. Then steps of
// training and evaluation may follow each other in any order, if they have the same stages on the same ranks.
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "pipeline/checks/checks.h"

namespace smdp::pipeline {
namespace {

std::size_t at(int value) { return static_cast<std::size_t>(value); }

enum class Kept { kActivation, kValue, kGradient, kParameters, kOffloaded };

// What a row keeps at its end: the action that left it there, and what it is.
std::optional<std::pair<int, const char*>> left_over(const Schedule& schedule, const std::vector<Action>& row) {
  std::map<std::tuple<Kept, int, int>, int> kept;
  for (int index = 0; index < static_cast<int>(row.size()); ++index) {
    for_each_part(row[at(index)], [&](const Action& part) {
      const auto keep = [&](Kept what, int microbatch) { kept[{what, part.stage, microbatch}] = index; };
      const auto drop = [&](Kept what, int microbatch) { kept.erase({what, part.stage, microbatch}); };
      switch (part.kind) {
        case ActionKind::kForward:
          drop(Kept::kValue, part.microbatch);
          if (!schedule.forward_only) keep(Kept::kActivation, part.microbatch);
          break;
        case ActionKind::kBackward:
          drop(Kept::kGradient, part.microbatch);
          drop(Kept::kActivation, part.microbatch);
          break;
        case ActionKind::kBackwardInput:
          drop(Kept::kGradient, part.microbatch);
          break;
        case ActionKind::kBackwardWeight:
          drop(Kept::kActivation, part.microbatch);
          break;
        case ActionKind::kRecvForward:
          keep(Kept::kValue, part.microbatch);
          break;
        case ActionKind::kRecvBackward:
          keep(Kept::kGradient, part.microbatch);
          break;
        case ActionKind::kUnshard:
          keep(Kept::kParameters, -1);
          break;
        case ActionKind::kReshard:
          drop(Kept::kParameters, -1);
          break;
        case ActionKind::kOffload:
          keep(Kept::kOffloaded, part.microbatch);
          break;
        case ActionKind::kReload:
          drop(Kept::kOffloaded, part.microbatch);
          break;
        default:
          break;
      }
    });
  }
  if (kept.empty()) return std::nullopt;
  constexpr const char* kWhat[] = {"its activations are kept", "what it received is never used",
                                   "what it received is never used", "its parameters stay unsharded",
                                   "what it offloaded is never reloaded"};
  const auto& [key, index] = *kept.begin();
  return std::pair(index, kWhat[static_cast<std::size_t>(std::get<0>(key))]);
}

}  // namespace

Found check_alternation(const Schedule& schedule, const VerifyOptions& options) {
  std::vector<const Schedule*> all{&schedule};
  for (const Schedule& other : options.alternates) all.push_back(&other);
  for (const Schedule* one : all) {
    for (int rank = 0; rank < one->ranks(); ++rank) {
      if (const auto left = left_over(*one, one->rows[at(rank)])) {
        return violation_at(Check::kAlternation, *one, rank, left->first,
                            std::string(left->second) + " when the step ends, and the next step would find it");
      }
    }
    for (int stage = 0; stage < std::max(schedule.stages(), one->stages()); ++stage) {
      const int ours = stage < schedule.stages() ? schedule.rank_of[at(stage)] : -1;
      const int theirs = stage < one->stages() ? one->rank_of[at(stage)] : -1;
      if (ours == theirs) continue;
      return violation_of(
          Check::kAlternation, schedule, ours < 0 ? 0 : ours, {.kind = ActionKind::kForward, .stage = stage},
          "stage " + std::to_string(stage) + " is on rank " + std::to_string(ours) + ", in the alternate '" +
              one->name + "' on rank " + std::to_string(theirs) + " (-1: nowhere)");
    }
  }
  return std::nullopt;
}

}  // namespace smdp::pipeline
