// The rows around an action, for messages.
#pragma once

#include <string>

#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// Returns the rows of `rank` and its neighbors, with three actions on each side of `index` and that action in brackets.
std::string surroundings(const Schedule& schedule, int rank, int index);

}  // namespace smdp::pipeline
