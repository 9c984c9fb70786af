// What ranks agree on before the first step.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cost/fusion_cost.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// Returns whether the dtype is a floating-point or complex type.
bool has_mean(DType dtype);

// Names the gradients from `first` to `last`, for messages.
std::string names_of(const Gradient& first, const Gradient& last);
// Returns the purpose of the group that averages them, see GroupSetup.
std::string purpose_of(const std::vector<Gradient>& gradients, const GradientReducerOptions& options);

// Throws InvalidArgument, with `prefix` before the text.
void check_options(const GradientReducerOptions& options, const std::string& prefix);

// Returns a factor of the loss scale. Throws InvalidArgument unless it is a float32 above 0.
float checked_rescale(double factor);

// Throws InvalidArgument for an invalid option, or a gradient whose type has no mean.
void check_gradients(const Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options);

// Collective. Throws MismatchError on all ranks if a rank's list differs from rank 0's, naming the first difference.
void check_same_gradients(Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options);

// Collective. Returns rank 0's measurements of an all_reduce and of sums on all ranks; see calibrate().
cost::Measured measure(Group& group, bool tries_streams);

}  // namespace smdp
