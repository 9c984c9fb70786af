// A pipeline schedule is data: for every rank the list of what it does, in order. Generators make it, lowering passes
// add communication, the verifier proves it, the simulator prices it, an engine only executes it.
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
  kV,     // down the ranks and up again: 0 .. p-1, p-1 .. 0, ...
};

SMDP_API std::string_view name_of(Placement placement);

// loop, v. Throws InvalidArgument.
SMDP_API Placement parse_placement(std::string_view name);

struct Schedule {
  std::string name;
  int microbatches = 0;
  bool forward_only = false;                    // no backward: evaluation
  std::vector<int> rank_of;                     // per virtual stage
  std::vector<std::vector<Action>> rows;        // per rank
  std::vector<std::pair<int, int>> skip_edges;  // values that pass stages by: (source, target), target > source + 1
  std::vector<std::vector<int>> tied;           // groups of virtual stages that share a weight
  std::vector<std::string> payloads;            // what transfers carry: "float32[8x512x768]", of several tensors with +

  int ranks() const { return static_cast<int>(rows.size()); }
  int stages() const { return static_cast<int>(rank_of.size()); }  // virtual ones

  // Payloads by their text: each may list them in its own order.
  SMDP_API bool operator==(const Schedule& other) const;
};

// Bounds of what is accepted, so that no input asks for more memory than there is.
inline constexpr int kMaxRanks = 4096;
inline constexpr int kMaxStages = 1 << 16;
inline constexpr int kMaxCells = 1 << 22;           // virtual stages x microbatches
inline constexpr int kMaxPayloads = (1 << 15) - 1;  // different ones

// rank_of for so many virtual stages per rank.
SMDP_API std::vector<int> place(Placement placement, int ranks, int virtual_stages);

// Whether stage and microbatch, if the kind has one, are those of the schedule; of a pair both halves'. kReduceNorm,
// which has no stage, never is.
inline bool is_in_range(const Schedule& schedule, const Action& action) {
  bool is_inside = true;
  for_each_part(action, [&](const Action& part) {
    is_inside = is_inside && part.stage >= 0 && part.stage < schedule.stages() &&
                (!has_microbatch(part.kind) || (part.microbatch >= 0 && part.microbatch < schedule.microbatches));
  });
  return is_inside;
}

// What a transfer carries; empty where nothing is said.
SMDP_API std::string_view payload_of(const Schedule& schedule, const Action& action);

// As to_text(action), and what it carries after a colon: 0SEND_F1:float32[8x512x768].
SMDP_API std::string to_text(const Schedule& schedule, const Action& action);

// Throws InvalidArgument unless ranks, stages, edges, groups and payloads are in range and within the bounds above.
// Rows may hold anything: that is the verifier's matter.
SMDP_API void check_shape(const Schedule& schedule);

}  // namespace smdp::pipeline
