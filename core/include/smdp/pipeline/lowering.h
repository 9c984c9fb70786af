// Passes that turn a schedule of computations into one that an engine can execute. Each adds one kind of action and
// leaves the order of the others. Run them in this order, each once: InvalidArgument if a row has what it adds.
#pragma once

#include <string>
#include <vector>

#include "smdp/export.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// UNSHARD before a stage's use and RESHARD when it makes room, at most `unshard` stages at once on a rank: the
// next ones that the row uses.
SMDP_API Schedule add_unshard_reshard(const Schedule& schedule, int unshard = 3);

// OFFLOAD after the forward and RELOAD before the backward of the given virtual stages, `offload_horizon` computations
// ahead of it. A microbatch that comes back within the horizon stays.
SMDP_API Schedule add_offload(const Schedule& schedule, const std::vector<int>& stages, int offload_horizon = 4);

// REDUCE_GRAD after the last gradient of each virtual stage.
SMDP_API Schedule add_reduce_grad(const Schedule& schedule);

// REDUCE_TIED at the end of the rows that hold a stage of the group, in one order on all of them. Throws
// InvalidArgument: a group has less than two different stages.
SMDP_API Schedule add_tied_reductions(const Schedule& schedule, const std::vector<std::vector<int>>& groups);

// REDUCE_NORM at the end of every row, where gradients are clipped by their global norm.
SMDP_API Schedule add_reduce_norm(const Schedule& schedule);

// What one virtual stage hands to another: dtype and shape, as in "float32[8x512x768]", a + between several tensors.
struct EdgePayload {
  int source = 0;  // virtual stages: neighbours or a skip edge
  int target = 0;
  std::string payload;  // the gradient that comes back has the same
};

// SEND and RECV for every value that changes rank. All transfers stand in one global order, on both sides, so that not
// even a transport without buffers can deadlock. Of edges that `payloads` leaves out, nothing is said. Throws
// InvalidArgument: the computations cannot be ordered, or a payload is none, or of no edge, or there twice.
SMDP_API Schedule add_send_recv(const Schedule& schedule, const std::vector<EdgePayload>& payloads = {});

}  // namespace smdp::pipeline
