#include "partition/simulated.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "partition/price.h"

namespace smdp::partition {
namespace {

// Total number of actions to simulate: takes about a second.
constexpr double kBudget = 4e6;

// Returns how many simulated actions take as long as generating one action; some schedules try many orders.
double effort(const std::string& schedule) {
  if (schedule == "zb_1p" || schedule == "zb_2p") return 100;
  if (schedule == "auto") return 500;
  return schedule == "v_half" || schedule == "v_min" ? 1000 : 1;
}

class Search {
 public:
  Search(const Problem& problem, const Spans& spans)
      : problem_(problem),
        spans_(spans),
        is_formula_(is_sum_exact(problem)),
        actions_(3.0 * effort(problem.schedule) * static_cast<double>(spans.stages()) *
                 static_cast<double>(problem.microbatches)) {}

  bool has_budget() const { return spent_ <= kBudget; }

  // Returns whether these ends are the best so far: least above the cap, then fastest, then smallest.
  bool consider(const Ends& ends) {
    spent_ += actions_;
    const Partition partition = priced(problem_, spans_, ends);
    const double most = peak(partition);
    const double above = problem_.memory_cap > 0 ? std::max(0.0, most - problem_.memory_cap) : 0;
    const auto score = std::tuple{above, partition.step, most};
    if (!result_.ends.empty() && score >= score_) return false;
    score_ = score;
    result_ = {ends, most, above == 0};
    return true;
  }

  bool can_try_all() const {
    double cuts = 1;
    const std::size_t inner = spans_.units() - 1;
    for (std::size_t i = 0; i + 1 < spans_.stages(); ++i) {
      cuts *= static_cast<double>(inner - i) / static_cast<double>(i + 1);
      if (cuts * actions_ > kBudget) return false;
    }
    return true;
  }

  // Tries every allowed continuation of the stages in `ends`.
  void try_all(Ends& ends) {
    const std::size_t stage = ends.size();
    const std::size_t begin = stage == 0 ? 0 : ends.back();
    const std::size_t behind = spans_.stages() - stage - 1;
    for (std::size_t end = behind == 0 ? spans_.units() : begin + 1; end + behind <= spans_.units(); ++end) {
      if (!spans_.is_allowed(stage, begin, end)) continue;
      if (is_formula_ && spans_.is_over_cap(stage, begin, end)) continue;
      ends.push_back(end);
      if (behind == 0) {
        consider(ends);
      } else {
        try_all(ends);
      }
      ends.pop_back();
    }
  }

  // Returns whether moving one cut by one unit has helped.
  bool improve() {
    const Ends start = result_.ends;
    for (std::size_t cut = 0; cut + 1 < start.size(); ++cut) {
      for (const bool is_earlier : {true, false}) {
        if (!has_budget()) return false;
        Ends ends = start;
        ends[cut] = is_earlier ? ends[cut] - 1 : ends[cut] + 1;
        const std::size_t begin = cut == 0 ? 0 : ends[cut - 1];
        if (ends[cut] <= begin || ends[cut] >= ends[cut + 1]) continue;
        if (!spans_.is_allowed(cut, begin, ends[cut]) || !spans_.is_allowed(cut + 1, ends[cut], ends[cut + 1]))
          continue;
        if (is_formula_ && !is_within_cap(spans_, ends)) continue;
        if (consider(ends)) return true;
      }
    }
    return false;
  }

  const Simulated& result() const { return result_; }

 private:
  const Problem& problem_;
  const Spans& spans_;
  bool is_formula_;  // memory comes from the closed form, not from the simulator
  double actions_;
  double spent_ = 0;
  std::tuple<double, double, double> score_;
  Simulated result_;
};

}  // namespace

Simulated best_simulated(const Problem& problem, const Spans& spans) {
  Search search(problem, spans);
  if (search.can_try_all()) {
    Ends ends;
    search.try_all(ends);
    return search.result();
  }
  const double weight = static_cast<double>(problem.microbatches) * problem.virtual_stages - 1;
  std::vector<Cut> front = pareto_front(spans, weight);
  // The most balanced first, because the budget may not suffice for all.
  std::reverse(front.begin(), front.end());
  for (const Cut& cut : front) {
    if (!search.result().ends.empty() && !search.has_budget()) break;
    search.consider(cut.ends);
  }
  // If none of those is within the cap, start from small ones.
  if (!search.result().is_within_cap) {
    if (const auto small = smallest_memory(spans)) search.consider(*small);
  }
  while (!search.result().ends.empty() && search.improve()) {
  }
  return search.result();
}

Ends improved(const Problem& problem, const Spans& spans, const Ends& ends) {
  Search search(problem, spans);
  search.consider(ends);
  if (search.can_try_all() && problem.memory_weight == 0) {
    Ends all;
    search.try_all(all);
    return search.result().ends;
  }
  while (search.improve()) {
  }
  return search.result().ends;
}

}  // namespace smdp::partition
