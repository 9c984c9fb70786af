// What ranks agree on before the first step.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cost/fusion_cost.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// Floats and complex numbers.
bool has_mean(DType dtype);

// Of these and those between, for messages.
std::string names_of(const Gradient& first, const Gradient& last);
// Of the group that averages them: see GroupSetup.
std::string purpose_of(const std::vector<Gradient>& gradients, const GradientReducerOptions& options);

// Throws InvalidArgument, the text after `prefix`.
void check_options(const GradientReducerOptions& options, const std::string& prefix);

// Of the loss scale: throws InvalidArgument for what is no float32 above 0.
float checked_rescale(double factor);

// Throws InvalidArgument for an option, or a gradient that has no mean.
void check_gradients(const Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options);

// Collective. Throws MismatchError on all ranks if a rank's list differs from rank 0's, with the first difference.
void check_same_gradients(Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options);

// Collective. Rank 0's figures of an all_reduce and of sums, on all ranks; see calibrate().
cost::Measured measure(Group& group, bool tries_streams);

}  // namespace smdp
