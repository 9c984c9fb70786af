#include "partition/spans.h"

#include <algorithm>
#include <map>
#include <utility>

#include "smdp/link_cost.h"

namespace smdp::partition {

Spans::Spans(const Problem& problem, std::vector<double> in_flight, double cap)
    : in_flight_(std::move(in_flight)),
      cap_(cap),
      state_factor_(problem.state_factor),
      seconds_share_(1 - problem.memory_weight) {
  const std::size_t count = problem.units.size();
  const cost::Link link{problem.latency, problem.bandwidth};
  for (std::vector<double>* sums : {&seconds_, &parameters_, &activations_}) sums->assign(count + 1, 0);
  hops_.assign(count + 1, 0);
  can_cut_.assign(count + 1, true);
  for (std::size_t i = 0; i < count; ++i) {
    const Unit& unit = problem.units[i];
    seconds_[i + 1] = seconds_[i] + (unit.forward + unit.backward_input + unit.backward_weight);
    parameters_[i + 1] = parameters_[i] + unit.parameter_bytes;
    activations_[i + 1] = activations_[i] + unit.activation_bytes;
    hops_[i + 1] = 2 * cost::transfer(unit.cut_bytes, link);
  }
  std::map<std::vector<std::size_t>, double> merged;
  for (const Tied& group : problem.tied) {
    merged[group.units] += group.bytes;
    if (!problem.is_tied_together) continue;
    std::fill(can_cut_.begin() + static_cast<std::ptrdiff_t>(group.units.front()) + 1,
              can_cut_.begin() + static_cast<std::ptrdiff_t>(group.units.back()) + 1, false);
  }
  double twice = 0;  // bytes of parameters that the sums count more than once
  for (auto& [units, bytes] : merged) {
    tied_.push_back({bytes, units});
    tied_seconds_.push_back(cost::all_reduce(bytes, 2, link));
    twice += bytes * static_cast<double>(units.size() - 1);
  }
  const double bytes = parameters_[count] - twice + activations_[count];
  if (bytes > 0) seconds_per_byte_ = problem.memory_weight * seconds_[count] / bytes;
  first_pin_.assign(count + 1, -1);
  first_pinned_.assign(count + 1, count);
  last_pin_.assign(count + 1, -1);
  for (std::size_t i = count; i-- > 0;) {
    const bool is_pinned = problem.units[i].stage >= 0;
    first_pin_[i] = is_pinned ? problem.units[i].stage : first_pin_[i + 1];
    first_pinned_[i] = is_pinned ? i : first_pinned_[i + 1];
  }
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_pinned = problem.units[i].stage >= 0;
    last_pin_[i + 1] = is_pinned ? problem.units[i].stage : last_pin_[i];
  }
}

std::size_t Spans::first_of(const Tied& group, std::size_t begin) const {
  const auto found = std::lower_bound(group.units.begin(), group.units.end(), begin);
  return found == group.units.end() ? units() : *found;
}

double Spans::load(std::size_t begin, std::size_t end) const {
  const double seconds = between(seconds_, begin, end);
  if (seconds_per_byte_ == 0) return seconds_share_ * seconds;
  return seconds_share_ * seconds + seconds_per_byte_ * (parameter_bytes(begin, end) + activation_bytes(begin, end));
}

double Spans::extra(std::size_t begin, std::size_t end) const {
  if (begin == 0) return 0;
  double seconds = hops_[begin];
  for (std::size_t i = 0; i < tied_.size(); ++i) {
    if (tied_[i].units.front() >= begin || first_of(tied_[i], begin) >= end) continue;
    // The additional copy also adds load, by which the sum over all stages grows.
    seconds += tied_seconds_[i] + seconds_per_byte_ * tied_[i].bytes;
  }
  return seconds;
}

double Spans::parameter_bytes(std::size_t begin, std::size_t end) const {
  double bytes = between(parameters_, begin, end);
  for (const Tied& group : tied_) {
    const auto first = std::lower_bound(group.units.begin(), group.units.end(), begin);
    const auto last = std::lower_bound(first, group.units.end(), end);
    if (last - first > 1) bytes -= group.bytes * static_cast<double>(last - first - 1);
  }
  return bytes;
}

double Spans::memory(std::size_t stage, std::size_t begin, std::size_t end) const {
  return state_factor_ * parameter_bytes(begin, end) + in_flight_[stage] * activation_bytes(begin, end);
}

bool Spans::is_allowed(std::size_t stage, std::size_t begin, std::size_t end) const {
  if (!can_cut_[begin]) return false;
  if (first_pinned_[begin] >= end) return true;  // nothing is pinned here
  const int pin = static_cast<int>(stage);
  return first_pin_[begin] == pin && last_pin_[end] == pin;  // pins ascend
}

}  // namespace smdp::partition
