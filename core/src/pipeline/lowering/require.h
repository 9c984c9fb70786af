// Checks that a pass runs only once.
#pragma once

#include <string>

#include "smdp/error.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// Throws InvalidArgument if a row already has the action that the pass adds.
template <typename IsAdded>
void require_without(const Schedule& schedule, const char* pass, const char* what, IsAdded&& is_added) {
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (const Action& action : schedule.rows[at(rank)]) {
      if (!is_added(action.kind)) continue;
      throw InvalidArgument("[smdp] " + std::string(pass) + ": rank " + std::to_string(rank) + " already has " +
                            to_text(action) + "; pass a schedule without " + what + ".");
    }
  }
}

}  // namespace smdp::pipeline
