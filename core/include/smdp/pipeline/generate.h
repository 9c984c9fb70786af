// Generates schedules by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "smdp/export.h"
#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

struct GenerateOptions {
  int stages = 1;  // pipeline stages, one per rank
  int microbatches = 1;
  int virtual_stages = 1;              // per rank; auto: at most 64
  int active_microbatches = 0;         // smp_interleaved: maximum in flight; 0: stages + 2, as in SMP
  std::optional<Costs> costs;          // smp_interleaved, zb_1p, zb_2p, v_half, v_min, auto; default: 1 each, no hop
  std::optional<double> memory_cap;    // auto: bytes of activations per rank
  std::optional<Placement> placement;  // forward_only: either; all others have a fixed one
  // Rank of each virtual stage, instead of virtual_stages and placement. Empty: as given by these. Any order of ranks
  // is allowed if ScheduleInfo::takes_any_placement; otherwise only the schedule's own placement.
  std::vector<int> rank_of = {};
};

struct ScheduleInfo {
  std::string_view name;
  std::string_view description;                           // one line
  int usual_virtual_stages = 1;                           // per rank, unless the caller asks for another number
  int virtual_stages = 0;                                 // the only valid number per rank; 0: any
  std::optional<Placement> placement = Placement::kLoop;  // nullopt: either
  bool is_split = false;                                  // the schedule has, or may have, separate I and W
  bool takes_any_placement = false;                       // rank_of may be any
  std::string_view others = {};  // if virtual_stages is fixed: a similar schedule with other numbers
};

// Returns all schedules, in the order in which documentation and errors list them.
SMDP_API std::vector<ScheduleInfo> schedule_names();

// Returns a schedule's facts. Throws InvalidArgument if there is no schedule of this name.
SMDP_API const ScheduleInfo& schedule_info(std::string_view name);

// Generates the compute actions; lowering.h adds the others. Throws InvalidArgument for an unknown name, or for a
// number that the schedule does not support, with the rule and the nearest valid number.
SMDP_API Schedule generate(std::string_view name, const GenerateOptions& options);

}  // namespace smdp::pipeline
