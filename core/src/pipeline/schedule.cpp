#include "smdp/pipeline/schedule.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/argument.h"
#include "pipeline/payload.h"

namespace smdp::pipeline {

std::string_view name_of(Placement placement) { return placement == Placement::kV ? "v" : "loop"; }

Placement parse_placement(std::string_view name) {
  for (const Placement placement : {Placement::kLoop, Placement::kV}) {
    if (name_of(placement) == name) return placement;
  }
  refuse("placement", "'" + shown(name) + "'", "loop, v");
}

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

bool Schedule::operator==(const Schedule& other) const {
  const auto rest_of = [](const Schedule& schedule) {
    return std::tie(schedule.name, schedule.microbatches, schedule.forward_only, schedule.rank_of, schedule.skip_edges,
                    schedule.tied);
  };
  if (rest_of(*this) != rest_of(other)) return false;
  if (payloads == other.payloads) return rows == other.rows;
  const auto is_equal = [&](const Action& ours, Action theirs) {
    if (payload_of(*this, ours) != payload_of(other, theirs)) return false;
    theirs.payload = ours.payload;
    return ours == theirs;
  };
  return std::equal(rows.begin(), rows.end(), other.rows.begin(), other.rows.end(),
                    [&](const std::vector<Action>& ours, const std::vector<Action>& theirs) {
                      return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), is_equal);
                    });
}

std::string_view payload_of(const Schedule& schedule, const Action& action) {
  const bool is_said = action.payload >= 0 && static_cast<std::size_t>(action.payload) < schedule.payloads.size();
  return is_said ? std::string_view(schedule.payloads[at(action.payload)]) : std::string_view();
}

std::string to_text(const Schedule& schedule, const Action& action) {
  const std::string_view payload = payload_of(schedule, action);
  return payload.empty() ? to_text(action) : to_text(action) + ":" + std::string(payload);
}

void check_shape(const Schedule& schedule) {
  const int ranks = schedule.ranks();
  const int stages = schedule.stages();
  const std::string last_stage = "stages from 0 to " + std::to_string(stages - 1);
  check_count("rows", static_cast<std::int64_t>(schedule.rows.size()), 1, kMaxRanks);
  check_count("virtual stages", static_cast<std::int64_t>(schedule.rank_of.size()), 1, kMaxStages);
  check_count("microbatches", schedule.microbatches, 1, kMaxCells / stages,
              " with " + std::to_string(stages) + " virtual stages");
  for (int stage = 0; stage < stages; ++stage) {
    const int rank = schedule.rank_of[at(stage)];
    // Makes names only for errors, because there may be many stages.
    if (rank < 0 || rank >= ranks) check_count("rank_of[" + std::to_string(stage) + "]", rank, 0, ranks - 1);
  }
  check_count("skip edges", static_cast<std::int64_t>(schedule.skip_edges.size()), 0,
              kMaxCells / schedule.microbatches);
  std::vector<std::pair<int, int>> edges = schedule.skip_edges;
  std::sort(edges.begin(), edges.end());
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const auto [source, target] = edges[i];
    const bool is_valid = source >= 0 && source < target && target < stages && target != source + 1;
    if (is_valid && (i == 0 || edges[i] != edges[i - 1])) continue;
    refuse("skip edge", std::to_string(source) + " -> " + std::to_string(target),
           "from a stage to a later one, past at least one, each once; " + last_stage);
  }
  check_count("payloads", static_cast<std::int64_t>(schedule.payloads.size()), 0, kMaxPayloads);
  for (const std::string& payload : schedule.payloads) check_payload(payload);
  for (const std::vector<int>& group : schedule.tied) {
    for (const int stage : group) {
      if (stage < 0 || stage >= stages) refuse("a stage of a tied group", std::to_string(stage), last_stage);
    }
  }
}

}  // namespace smdp::pipeline
