#include "smdp/pipeline/schedule.h"

#include <string>

#include "smdp/error.h"

namespace smdp::pipeline {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw InvalidArgument("[smdp] schedule: " + what + ".");
}

}  // namespace

std::vector<int> place(Placement placement, int ranks, int virtual_stages) {
  std::vector<int> rank_of;
  rank_of.reserve(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(virtual_stages));
  for (int turn = 0; turn < virtual_stages; ++turn) {
    for (int i = 0; i < ranks; ++i) {
      rank_of.push_back(placement == Placement::kV && turn % 2 == 1 ? ranks - 1 - i : i);
    }
  }
  return rank_of;
}

void check_shape(const Schedule& schedule) {
  const int ranks = schedule.ranks();
  const int stages = schedule.stages();
  require(ranks >= 1 && ranks <= kMaxRanks,
          "rows=" + std::to_string(schedule.rows.size()) + " is not valid; allowed: 1 to " + std::to_string(kMaxRanks));
  require(stages >= 1 && stages <= kMaxStages, "rank_of has " + std::to_string(schedule.rank_of.size()) +
                                                   " virtual stages; allowed: 1 to " + std::to_string(kMaxStages));
  require(schedule.microbatches >= 1 && schedule.microbatches <= kMaxCells / stages,
          "microbatches=" + std::to_string(schedule.microbatches) + " is not valid; allowed with " +
              std::to_string(stages) + " virtual stages: 1 to " + std::to_string(kMaxCells / stages));
  for (int stage = 0; stage < stages; ++stage) {
    const int rank = schedule.rank_of[static_cast<std::size_t>(stage)];
    require(rank >= 0 && rank < ranks, "rank_of[" + std::to_string(stage) + "]=" + std::to_string(rank) +
                                           " is not valid; allowed: 0 to " + std::to_string(ranks - 1));
  }
  for (const auto& [source, target] : schedule.skip_edges) {
    require(source >= 0 && source < target && target < stages && target != source + 1,
            "skip edge " + std::to_string(source) + " -> " + std::to_string(target) +
                " is not valid; it goes from a stage to a later one, past at least one, of " + std::to_string(stages));
  }
  require(schedule.skip_edges.size() <= static_cast<std::size_t>(kMaxCells / schedule.microbatches),
          std::to_string(schedule.skip_edges.size()) + " skip edges are too many");
  for (const std::vector<int>& group : schedule.tied) {
    for (const int stage : group) {
      require(stage >= 0 && stage < stages,
              "a tied group holds stage " + std::to_string(stage) + "; allowed: 0 to " + std::to_string(stages - 1));
    }
  }
}

}  // namespace smdp::pipeline
