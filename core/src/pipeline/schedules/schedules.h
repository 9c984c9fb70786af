// One generator per file; generate.cpp lists them.
#pragma once

#include <string>

#include "smdp/pipeline/generate.h"

namespace smdp::pipeline {

Schedule gpipe(const GenerateOptions& options);
Schedule smp_interleaved(const GenerateOptions& options);
Schedule one_f_one_b(const GenerateOptions& options);
Schedule interleaved_1f1b(const GenerateOptions& options);
Schedule looped_bfs(const GenerateOptions& options);
Schedule interleaved_zero_bubble(const GenerateOptions& options);
Schedule zb_1p(const GenerateOptions& options);
Schedule zb_2p(const GenerateOptions& options);
Schedule zb_v(const GenerateOptions& options);
Schedule v_half(const GenerateOptions& options);
Schedule v_min(const GenerateOptions& options);
Schedule dualpipe_v(const GenerateOptions& options);
Schedule forward_only(const GenerateOptions& options);
Schedule automatic(const GenerateOptions& options);

// Returns the number of virtual stages of all ranks together.
int stages_of(const GenerateOptions& options);

// Runs all microbatches through one virtual stage of a rank after the other, and backwards in reverse. Works for any
// placement: every rank takes its stages in order, so the first action that is not done can always run.
Schedule breadth_first(Schedule blank);

// Returns a schedule without actions.
Schedule blank(std::string name, Placement placement, const GenerateOptions& options);

// Returns the options' costs, or 1 of each kind per virtual stage.
Costs costs_or_unit(const GenerateOptions& options);

inline Action compute(ActionKind kind, int stage, int microbatch) {
  return {.kind = kind, .stage = stage, .microbatch = microbatch};
}

}  // namespace smdp::pipeline
