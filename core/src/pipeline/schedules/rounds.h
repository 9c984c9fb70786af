// The depth-first order of interleaved schedules: microbatches go through a rank's virtual stages in rounds.
#pragma once

#include <vector>

#include "smdp/pipeline/generate.h"

namespace smdp::pipeline {

struct Step {
  int turn;  // index among the rank's virtual stages
  int microbatch;
};

struct Rounds {
  int longest = 0;              // microbatches of the first round
  std::vector<Step> forwards;   // the same for every rank
  std::vector<Step> backwards;  // last virtual stage first
};

// Makes max(1, m / p) rounds, of equal length if m allows it; otherwise the first ones are one microbatch longer.
Rounds make_rounds(const GenerateOptions& options);

}  // namespace smdp::pipeline
