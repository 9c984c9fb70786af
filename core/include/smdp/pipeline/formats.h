// Schedules as text: torch's CSV, JSON, a Gantt chart and a Chrome trace.
#pragma once

#include <string>
#include <string_view>

#include "smdp/export.h"
#include "smdp/pipeline/schedule.h"
#include "smdp/pipeline/simulate.h"

namespace smdp::pipeline {

// Returns one line per rank, in the format of torch.distributed.pipelining. The format has no payloads.
SMDP_API std::string to_csv(const Schedule& schedule);

// Reads the CSV format. Ranks, placement, skip edges and tied groups follow from the rows, as does the number of
// microbatches unless it is given. Empty cells and blank lines at the end are skipped; a last row without actions is
// written as a comma. Throws InvalidArgument with the line, the cell and what is allowed.
SMDP_API Schedule from_csv(std::string_view text, int microbatches = 0);

SMDP_API std::string to_json(const Schedule& schedule);

// Throws InvalidArgument with the field, its value and what is allowed.
SMDP_API Schedule from_json(std::string_view text);

// Returns one line per rank, at most `width` characters wide. A digit is a forward (of microbatch mod 10), a letter a
// backward, ':' a weight gradient, '*' an overlapped pair and '.' idle time.
SMDP_API std::string gantt(const Schedule& schedule, const Simulation& simulation, int width = 120);

// Returns a trace for ui.perfetto.dev and chrome://tracing, in which one unit of time is one second.
SMDP_API std::string chrome_trace(const Schedule& schedule, const Simulation& simulation);

}  // namespace smdp::pipeline
