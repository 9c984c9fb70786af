// The rows around an action, for messages.
#pragma once

#include <string>

#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// The row of `rank` and its neighbours', three actions to each side of `index`; that action in brackets.
std::string surroundings(const Schedule& schedule, int rank, int index);

}  // namespace smdp::pipeline
