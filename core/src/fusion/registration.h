// What ranks agree on before the first step.
#pragma once

#include <cstddef>
#include <vector>

#include "cost/fusion_cost.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// Throws InvalidArgument, the text after `prefix`.
void check_options(const GradientReducerOptions& options, const std::string& prefix);

// Collective. Throws MismatchError on all ranks if a rank's list differs from rank 0's, with the first difference.
void check_same_gradients(Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options);

// Collective; well under 200 ms. Rank 0's figures, on all ranks.
cost::Measured measure_all_reduce(Group& group);

}  // namespace smdp
