#include "smdp/pipeline/costs.h"

#include <string>

#include "smdp/error.h"

namespace smdp::pipeline {
namespace {

// Sums of as many as a schedule can have stay finite.
constexpr double kLargest = 1e100;

void check_value(const char* field, double value, int stage = -1) {
  if (value >= 0 && value <= kLargest) return;
  const std::string where = stage < 0 ? "" : "[" + std::to_string(stage) + "]";
  throw InvalidArgument("[smdp] " + std::string(field) + where + "=" + std::to_string(value) +
                        " is not valid; allowed: 0 to 1e100.");
}

void check_values(const char* field, const std::vector<double>& values, int stages, bool may_be_empty = false) {
  if (may_be_empty && values.empty()) return;
  if (values.size() != static_cast<std::size_t>(stages)) {
    throw InvalidArgument("[smdp] " + std::string(field) + " has " + std::to_string(values.size()) +
                          " values, the schedule " + std::to_string(stages) +
                          " virtual stages; give one for each, or one number for all.");
  }
  for (int stage = 0; stage < stages; ++stage) check_value(field, values[static_cast<std::size_t>(stage)], stage);
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
  check_value("hop", costs.hop);
  check_value("unshard", costs.unshard);
  check_value("reduce_grad", costs.reduce_grad);
  check_value("reduce_tied", costs.reduce_tied);
  check_value("offload", costs.offload);
  check_value("reload", costs.reload);
}

}  // namespace smdp::pipeline
