// Makes schedules by name.
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
  int active_microbatches = 0;         // smp_interleaved: most in flight; 0: stages + 2, as in SMP
  std::optional<Costs> costs;          // smp_interleaved, zb_1p, zb_2p, v_half, v_min, auto; default: 1 each, no hop
  std::optional<double> memory_cap;    // auto: bytes of activations per rank
  std::optional<Placement> placement;  // forward_only: either; others have their own
  // Rank of each virtual stage, in place of virtual_stages and placement; empty: as these say. Any ranks in any order
  // where ScheduleInfo allows it; otherwise only the schedule's own placement.
  std::vector<int> rank_of = {};
};

struct ScheduleInfo {
  std::string_view name;
  std::string_view description;                           // one line
  int usual_virtual_stages = 1;                           // per rank, unless somebody wants another number
  int virtual_stages = 0;                                 // the only number per rank that it can have; 0: any
  std::optional<Placement> placement = Placement::kLoop;  // nullopt: either
  bool is_split = false;                                  // it has, or may have, I and W apart
  bool takes_any_placement = false;                       // rank_of may be any
  std::string_view others = {};  // where virtual_stages is given: a similar schedule that has other numbers
};

// In the order in which documentation and errors list them.
SMDP_API std::vector<ScheduleInfo> schedule_names();

// Throws InvalidArgument for a name that is none.
SMDP_API const ScheduleInfo& schedule_info(std::string_view name);

// Compute actions only; lowering.h adds the rest. Throws InvalidArgument: an unknown name, or a number that the
// schedule cannot have, with the rule and the nearest one that it can.
SMDP_API Schedule generate(std::string_view name, const GenerateOptions& options);

}  // namespace smdp::pipeline
