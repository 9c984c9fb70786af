#include "partition/search.h"

#include <algorithm>

namespace smdp::partition {
namespace {

// For every stage and first unit: the value of the best cut of everything that follows, and the end of the stage in it.
class Table {
 public:
  explicit Table(const Spans& spans)
      : units_(spans.units()), value_((spans.stages() + 1) * (units_ + 1), kNoLimit), end_(value_.size(), 0) {
    value(spans.stages(), units_) = 0;
  }

  double& value(std::size_t stage, std::size_t begin) { return value_[stage * (units_ + 1) + begin]; }
  std::size_t& end(std::size_t stage, std::size_t begin) { return end_[stage * (units_ + 1) + begin]; }

 private:
  std::size_t units_;
  std::vector<double> value_;
  std::vector<std::size_t> end_;
};

// Fills the table from the last stage on. measure(stage, begin, end) returns the value of a stage, or kNoLimit if it
// and every longer stage are too large; join(own, rest) returns the value of both. Both increase with their arguments.
template <typename Measure, typename Join>
std::optional<Ends> solve(const Spans& spans, const Measure& measure, const Join& join) {
  const std::size_t count = spans.units();
  const std::size_t stages = spans.stages();
  if (count < stages) return std::nullopt;
  Table table(spans);
  for (std::size_t stage = stages; stage-- > 0;) {
    const std::size_t behind = stages - stage - 1;  // stages, with at least one unit each
    const std::size_t last_begin = stage == 0 ? 0 : count - behind - 1;
    for (std::size_t begin = stage; begin <= last_begin; ++begin) {
      double& best = table.value(stage, begin);
      for (std::size_t end = stage + 1 == stages ? count : begin + 1; end + behind <= count; ++end) {
        const double own = measure(stage, begin, end);
        if (own == kNoLimit) break;
        const double rest = table.value(stage + 1, end);
        if (rest == kNoLimit || !spans.is_allowed(stage, begin, end)) continue;
        const double both = join(own, rest);
        if (both < best) {
          best = both;
          table.end(stage, begin) = end;
        }
      }
    }
  }
  if (table.value(0, 0) == kNoLimit) return std::nullopt;
  Ends ends;
  for (std::size_t stage = 0, begin = 0; stage < stages; ++stage) {
    begin = table.end(stage, begin);
    ends.push_back(begin);
  }
  return ends;
}

double larger(double one, double other) { return std::max(one, other); }

}  // namespace

bool is_within_cap(const Spans& spans, const Ends& ends) {
  for (std::size_t stage = 0, begin = 0; stage < ends.size(); begin = ends[stage++]) {
    if (spans.is_over_cap(stage, begin, ends[stage])) return false;
  }
  return true;
}

Cut measured(const Spans& spans, Ends ends) {
  Cut cut;
  for (std::size_t stage = 0, begin = 0; stage < ends.size(); begin = ends[stage++]) {
    cut.bottleneck = std::max(cut.bottleneck, spans.load(begin, ends[stage]));
    cut.extra += spans.extra(begin, ends[stage]);
  }
  cut.ends = std::move(ends);
  return cut;
}

std::optional<Cut> smallest_bottleneck(const Spans& spans) {
  auto ends = solve(
      spans,
      [&](std::size_t stage, std::size_t begin, std::size_t end) {
        return spans.is_over_cap(stage, begin, end) ? kNoLimit : spans.load(begin, end);
      },
      larger);
  if (!ends) return std::nullopt;
  return measured(spans, *std::move(ends));
}

std::optional<Cut> smallest_extra(const Spans& spans, double limit, bool is_below) {
  auto ends = solve(
      spans,
      [&](std::size_t stage, std::size_t begin, std::size_t end) {
        const double load = spans.load(begin, end);
        if (load > limit || (is_below && load == limit)) return kNoLimit;
        return spans.is_over_cap(stage, begin, end) ? kNoLimit : spans.extra(begin, end);
      },
      [](double own, double rest) { return own + rest; });
  if (!ends) return std::nullopt;
  return measured(spans, *std::move(ends));
}

std::optional<Ends> smallest_memory(const Spans& spans) {
  return solve(
      spans, [&](std::size_t stage, std::size_t begin, std::size_t end) { return spans.memory(stage, begin, end); },
      larger);
}

double memory_of(const Spans& spans, const Ends& ends) {
  double most = 0;
  for (std::size_t stage = 0, begin = 0; stage < ends.size(); begin = ends[stage++]) {
    most = std::max(most, spans.memory(stage, begin, ends[stage]));
  }
  return most;
}

std::vector<Cut> pareto_front(const Spans& spans, double weight) {
  // Sums of seconds differ in their last digits, which is not worth a search.
  constexpr double kNoise = 1e-12;
  const auto balanced = smallest_bottleneck(spans);
  if (!balanced) return {};
  const double least = balanced->bottleneck;
  // The cheapest among the most balanced cuts.
  Cut last = *smallest_extra(spans, least, false);
  double best = last.extra + weight * last.bottleneck;
  std::vector<Cut> front;
  for (auto cut = smallest_extra(spans, kNoLimit, false); cut; cut = smallest_extra(spans, cut->bottleneck, true)) {
    if (cut->bottleneck <= least || cut->extra >= last.extra * (1 - kNoise)) break;
    if (cut->extra + weight * least >= best * (1 - kNoise)) break;
    best = std::min(best, cut->extra + weight * cut->bottleneck);
    front.push_back(*cut);
  }
  front.push_back(std::move(last));
  return front;
}

}  // namespace smdp::partition
