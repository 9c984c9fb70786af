// A pipeline schedule is data: the ordered list of actions of every rank. Generators make it, lowering passes add
// communication, the verifier proves it, the simulator prices it, and an engine only executes it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "smdp/export.h"
#include "smdp/pipeline/action.h"

namespace smdp::pipeline {

enum class Placement {
  kLoop,  // virtual stage s on rank s mod p
  kV,     // down the ranks and back up: 0 .. p-1, p-1 .. 0, ...
};

SMDP_API std::string_view name_of(Placement placement);

// Parses "loop" or "v". Throws InvalidArgument.
SMDP_API Placement parse_placement(std::string_view name);

struct Schedule {
  std::string name;
  int microbatches = 0;
  bool forward_only = false;                    // no backward, for evaluation
  std::vector<int> rank_of;                     // per virtual stage
  std::vector<std::vector<Action>> rows;        // per rank
  std::vector<std::pair<int, int>> skip_edges;  // values that skip stages: (source, target), target > source + 1
  std::vector<std::vector<int>> tied;           // groups of virtual stages that share a weight
  std::vector<std::string> payloads;  // what transfers carry: "float32[8x512x768]", joined by + for several tensors

  int ranks() const { return static_cast<int>(rows.size()); }
  int stages() const { return static_cast<int>(rank_of.size()); }  // virtual ones

  // Compares payloads by their text, because two equal schedules may list them in different orders.
  SMDP_API bool operator==(const Schedule& other) const;
};

// Limits of what is accepted, which bound the memory that any input can ask for.
inline constexpr int kMaxRanks = 4096;
inline constexpr int kMaxStages = 1 << 16;
inline constexpr int kMaxCells = 1 << 22;           // virtual stages x microbatches
inline constexpr int kMaxPayloads = (1 << 15) - 1;  // different ones

// Returns rank_of for this number of virtual stages per rank.
SMDP_API std::vector<int> place(Placement placement, int ranks, int virtual_stages);

// Returns whether the stage and, if the kind has one, the microbatch exist in the schedule; for a pair, those of both
// halves. False for kReduceNorm, which has no stage.
inline bool is_in_range(const Schedule& schedule, const Action& action) {
  bool is_inside = true;
  for_each_part(action, [&](const Action& part) {
    is_inside = is_inside && part.stage >= 0 && part.stage < schedule.stages() &&
                (!has_microbatch(part.kind) || (part.microbatch >= 0 && part.microbatch < schedule.microbatches));
  });
  return is_inside;
}

// Returns what a transfer carries, or an empty text if that is unknown.
SMDP_API std::string_view payload_of(const Schedule& schedule, const Action& action);

// Returns to_text(action), followed by a colon and the payload: 0SEND_F1:float32[8x512x768].
SMDP_API std::string to_text(const Schedule& schedule, const Action& action);

// Throws InvalidArgument unless ranks, stages, edges, groups and payloads are in range and within the limits above.
// Does not check the rows, which the verifier does.
SMDP_API void check_shape(const Schedule& schedule);

}  // namespace smdp::pipeline
