#include "smdp/pipeline/costs.h"

#include <string>

#include "common/argument.h"

namespace smdp::pipeline {
namespace {

// Small enough that the sum over a largest possible schedule stays finite.
constexpr double kLargestCost = 1e100;

void check_values(const char* field, const std::vector<double>& values, int stages, bool may_be_empty = false) {
  if (may_be_empty && values.empty()) return;
  if (values.size() != static_cast<std::size_t>(stages)) {
    refuse(field, "a list of " + std::to_string(values.size()),
           "one for each of " + std::to_string(stages) + " virtual stages, or one number for all");
  }
  for (int stage = 0; stage < stages; ++stage) {
    const double value = values[static_cast<std::size_t>(stage)];
    // Makes names only for errors, because there may be many stages.
    if (!(value >= 0 && value <= kLargestCost))
      check_amount(field + ("[" + std::to_string(stage) + "]"), value, kLargestCost);
  }
}

}  // namespace

Costs uniform_costs(int stages, double forward, double backward_input, double backward_weight,
                    double activation_bytes) {
  const auto all = [&](double value) { return std::vector<double>(static_cast<std::size_t>(stages), value); };
  Costs costs;
  costs.forward = all(forward);
  costs.backward_input = all(backward_input);
  costs.backward_weight = all(backward_weight);
  costs.activation_bytes = all(activation_bytes);
  return costs;
}

void check_costs(const Costs& costs, int stages) {
  check_values("forward", costs.forward, stages);
  check_values("backward_input", costs.backward_input, stages);
  check_values("backward_weight", costs.backward_weight, stages);
  check_values("activation_bytes", costs.activation_bytes, stages);
  check_values("stash_bytes", costs.stash_bytes, stages, true);
  check_values("receive_bytes", costs.receive_bytes, stages, true);
  check_amount("hop", costs.hop, kLargestCost);
  check_amount("unshard", costs.unshard, kLargestCost);
  check_amount("reduce_grad", costs.reduce_grad, kLargestCost);
  check_amount("reduce_tied", costs.reduce_tied, kLargestCost);
  check_amount("reduce_norm", costs.reduce_norm, kLargestCost);
  check_amount("offload", costs.offload, kLargestCost);
  check_amount("reload", costs.reload, kLargestCost);
}

}  // namespace smdp::pipeline
