// What the tests of schedules share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "smdp/pipeline/generate.h"
#include "smdp/pipeline/lowering.h"
#include "smdp/pipeline/simulate.h"
#include "smdp/pipeline/verify.h"

namespace smdp::pipeline {

inline Schedule make(const std::string& name, int stages, int microbatches, int virtual_stages = 1) {
  GenerateOptions options;
  options.stages = stages;
  options.microbatches = microbatches;
  options.virtual_stages = virtual_stages;
  return generate(name, options);
}

// Times of a full stage, divided among a rank's virtual stages; so is its one byte of activations.
inline Costs of_full_stage(const Schedule& schedule, double forward = 1, double input = 1, double weight = 1) {
  const double part = static_cast<double>(schedule.ranks()) / schedule.stages();
  return uniform_costs(schedule.stages(), forward * part, input * part, weight * part, part);
}

inline double peak(const Simulation& simulation) {
  return *std::max_element(simulation.peak_activations.begin(), simulation.peak_activations.end());
}

// Numbers of virtual stages that a schedule can have, of 1 to 4.
inline std::vector<int> virtual_stages_of(const std::string& name) {
  const int only = schedule_info(name).virtual_stages;
  if (only > 0) return {only};
  return {1, 2, 3, 4};
}

inline bool is_possible(const std::string& name, int stages, int microbatches) {
  return name != "dualpipe_v" || microbatches >= 2 * stages;
}

}  // namespace smdp::pipeline
