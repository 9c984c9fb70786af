// Schedules as text: CSV (torch's), JSON, a Gantt chart, a Chrome trace.
#pragma once

#include <string>
#include <string_view>

#include "smdp/export.h"
#include "smdp/pipeline/schedule.h"
#include "smdp/pipeline/simulate.h"

namespace smdp::pipeline {

// One line per rank, as torch.distributed.pipelining reads and writes it; torch knows no payloads.
SMDP_API std::string to_csv(const Schedule& schedule);

// Ranks, placement, skip edges and tied groups follow from the rows, and so does the number of microbatches unless it
// is given. Empty cells are left out, and so are blank lines at the end; a last row without actions is a comma. Throws
// InvalidArgument with line, cell and what is allowed.
SMDP_API Schedule from_csv(std::string_view text, int microbatches = 0);

SMDP_API std::string to_json(const Schedule& schedule);

// Throws InvalidArgument with the field, its value and what is allowed.
SMDP_API Schedule from_json(std::string_view text);

// Text, one line per rank, at most `width` characters wide. A digit is a forward (of microbatch mod 10), a letter a
// backward, ':' a weight gradient, '*' an overlapped pair, '.' nothing.
SMDP_API std::string gantt(const Schedule& schedule, const Simulation& simulation, int width = 120);

// For ui.perfetto.dev and chrome://tracing; a unit of time is taken for a second.
SMDP_API std::string chrome_trace(const Schedule& schedule, const Simulation& simulation);

}  // namespace smdp::pipeline
