// Exact searches over all cuts of a chain into stages, each by dynamic programming from the last stage.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "partition/spans.h"

namespace smdp::partition {

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// ends[k] is the first unit behind stage k.
using Ends = std::vector<std::size_t>;

struct Cut {
  Ends ends;
  double bottleneck = 0;  // the largest load
  double extra = 0;       // sum of Spans::extra()
};

Cut measured(const Spans& spans, Ends ends);

bool is_within_cap(const Spans& spans, const Ends& ends);

// The cut with the smallest bottleneck; of equal ones the first. None: no cut is allowed and within the cap.
std::optional<Cut> smallest_bottleneck(const Spans& spans);

// The cut with the smallest extra whose loads are all below `limit`, or at most it; of equal ones the first.
std::optional<Cut> smallest_extra(const Spans& spans, double limit, bool is_below);

// The cut whose fullest stage holds the least; none if pins or tied parameters forbid all.
std::optional<Ends> smallest_memory(const Spans& spans);

// Bytes of the fullest stage.
double memory_of(const Spans& spans, const Ends& ends);

// Cuts that are Pareto-optimal in (bottleneck, extra), by falling bottleneck; the last has the smallest. That with the
// smallest extra + weight x bottleneck is among them; others are left out once they cannot be it. Empty: there is none.
std::vector<Cut> pareto_front(const Spans& spans, double weight);

}  // namespace smdp::partition
