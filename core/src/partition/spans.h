// The cost of units [begin, end), begin < end, as one stage.
#pragma once

#include <cstddef>
#include <vector>

#include "smdp/partition.h"

namespace smdp::partition {

class Spans {
 public:
  // in_flight: microbatches whose activations each stage holds. cap: bytes of a stage; 0: none.
  Spans(const Problem& problem, std::vector<double> in_flight, double cap);

  std::size_t units() const { return seconds_.size() - 1; }
  std::size_t stages() const { return in_flight_.size(); }

  // Returns seconds; with memory_weight w: (1 - w) seconds + w (bytes of the span / all bytes) (all seconds).
  double load(std::size_t begin, std::size_t end) const;

  // Returns the seconds in addition to the load, once per step: two hops over the cut at `begin`, and the gradients of
  // parameters that units before `begin` also use.
  double extra(std::size_t begin, std::size_t end) const;

  double parameter_bytes(std::size_t begin, std::size_t end) const;
  double activation_bytes(std::size_t begin, std::size_t end) const { return between(activations_, begin, end); }
  double memory(std::size_t stage, std::size_t begin, std::size_t end) const;

  // Returns whether the cut at `begin` is allowed and no unit is pinned to another stage.
  bool is_allowed(std::size_t stage, std::size_t begin, std::size_t end) const;
  bool is_over_cap(std::size_t stage, std::size_t begin, std::size_t end) const {
    return cap_ > 0 && memory(stage, begin, end) > cap_;
  }

 private:
  // Returns a group's first unit at or behind `begin`; units() if there is none.
  std::size_t first_of(const Tied& group, std::size_t begin) const;
  static double between(const std::vector<double>& sums, std::size_t begin, std::size_t end) {
    return sums[end] - sums[begin];
  }

  std::vector<double> in_flight_;
  double cap_;
  double state_factor_;
  double seconds_per_byte_ = 0;  // of the load
  double seconds_share_ = 1;     // 1 - memory_weight
  std::vector<double> seconds_;  // sums of all units before
  std::vector<double> parameters_;
  std::vector<double> activations_;
  std::vector<double> hops_;  // of the cut before a unit, both directions
  std::vector<bool> can_cut_;
  std::vector<int> first_pin_;  // at or behind a unit; -1: none
  std::vector<std::size_t> first_pinned_;
  std::vector<int> last_pin_;  // before a unit
  std::vector<Tied> tied_;     // merged: no two groups have the same units
  std::vector<double> tied_seconds_;
};

}  // namespace smdp::partition
