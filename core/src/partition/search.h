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

// Returns the cut with the smallest bottleneck, among equal ones the first. Nothing if no cut is allowed and within the
// cap.
std::optional<Cut> smallest_bottleneck(const Spans& spans);

// Returns the cut with the smallest extra among those with all loads below `limit`, or at most `limit`; among equal
// ones the first.
std::optional<Cut> smallest_extra(const Spans& spans, double limit, bool is_below);

// Returns the cut whose fullest stage needs the least memory; nothing if pins or tied parameters rule out all cuts.
std::optional<Ends> smallest_memory(const Spans& spans);

// Returns the bytes of the fullest stage.
double memory_of(const Spans& spans, const Ends& ends);

// Returns the cuts that are Pareto-optimal in (bottleneck, extra), by decreasing bottleneck; the last has the smallest.
// They include the one with the smallest extra + weight x bottleneck; cuts that cannot be that one may be left out.
// Empty if there is none.
std::vector<Cut> pareto_front(const Spans& spans, double weight);

}  // namespace smdp::partition
