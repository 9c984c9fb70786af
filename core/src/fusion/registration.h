// What ranks agree on before the first step.
#pragma once

#include <cstddef>
#include <vector>

#include "cost/fusion_cost.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// Floats and complex numbers.
bool has_mean(DType dtype);

// Throws InvalidArgument, the text after `prefix`.
void check_options(const GradientReducerOptions& options, const std::string& prefix);

// Collective. Throws MismatchError on all ranks if a rank's list differs from rank 0's, with the first difference.
void check_same_gradients(Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options);

// Collective; well under 200 ms, but on slow or long links, where it tries least. Rank 0's figures of an all_reduce and
// of sums, on all ranks. tries_streams: this group has several to each peer, of which one may do.
cost::Measured measure(Group& group, bool tries_streams);

}  // namespace smdp
