// Passes that turn a schedule of computations into one that an engine can execute. Each adds one kind of action and
// keeps the order of the others. Run them in this order, each once: a pass throws InvalidArgument if its actions are
// there.
#pragma once

#include <string>
#include <vector>

#include "smdp/export.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// Adds UNSHARD before a stage is used, and RESHARD when space is needed. At most `unshard` stages are unsharded on a
// rank at once: those that its row uses next.
SMDP_API Schedule add_unshard_reshard(const Schedule& schedule, int unshard = 3);

// Adds OFFLOAD after the forward of the given virtual stages, and RELOAD `offload_horizon` computations before the
// backward. Microbatches whose backward comes within the horizon are not offloaded.
SMDP_API Schedule add_offload(const Schedule& schedule, const std::vector<int>& stages, int offload_horizon = 4);

// Adds REDUCE_GRAD after the last gradient of each virtual stage.
SMDP_API Schedule add_reduce_grad(const Schedule& schedule);

// Adds REDUCE_TIED at the end of the rows that hold a stage of the group, in the same order on all of them. Throws
// InvalidArgument if a group has fewer than two different stages.
SMDP_API Schedule add_tied_reductions(const Schedule& schedule, const std::vector<std::vector<int>>& groups);

// Adds REDUCE_NORM at the end of every row, for clipping gradients by their global norm.
SMDP_API Schedule add_reduce_norm(const Schedule& schedule);

// What one virtual stage sends to another: dtype and shape, as in "float32[8x512x768]", joined by + for several
// tensors.
struct EdgePayload {
  int source = 0;  // virtual stages: neighbors or a skip edge
  int target = 0;
  std::string payload;  // the gradient sent back has the same
};

// Adds SEND and RECV for every value that goes to another rank. All transfers follow one global order on both sides, so
// that even a transport without buffers cannot deadlock. Edges missing from `payloads` get no payload. Throws
// InvalidArgument if the computations cannot be ordered, or if a payload is invalid, is for an edge that does not
// exist, or occurs twice.
SMDP_API Schedule add_send_recv(const Schedule& schedule, const std::vector<EdgePayload>& payloads = {});

}  // namespace smdp::pipeline
