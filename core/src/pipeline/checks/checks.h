// One check per file; verify.cpp runs them in turn. Each returns the first violation it finds.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "pipeline/data_edges.h"
#include "smdp/pipeline/verify.h"

namespace smdp::pipeline {

using Found = std::optional<Violation>;

Found check_empty_stages(const Schedule& schedule);
Found check_completeness(const Schedule& schedule);
Found check_placement(const Schedule& schedule);
Found check_local_order(const Schedule& schedule, const DataEdges& edges);
Found check_acyclicity(const Schedule& schedule, const DataEdges& edges);
Found check_matching(const Schedule& schedule, const DataEdges& edges);
Found check_deadlock(const Schedule& schedule, const DataEdges& edges, const VerifyOptions& options);
Found check_memory_cap(const Schedule& schedule, const VerifyOptions& options);
Found check_collective_order(const Schedule& schedule, const VerifyOptions& options);
Found check_alternation(const Schedule& schedule, const VerifyOptions& options);

// Returns a violation by the action at this place of the schedule. `what` is a sentence without its full stop.
Violation violation_at(Check check, const Schedule& schedule, int rank, int index, const std::string& what);

// Returns a violation by an action that is missing.
Violation violation_of(Check check, const Schedule& schedule, int rank, const Action& missing, const std::string& what);

bool has_transfers(const Schedule& schedule);

}  // namespace smdp::pipeline
