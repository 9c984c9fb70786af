#include "partition/explain.h"

#include <algorithm>
#include <cstdio>

#include "common/counted.h"
#include "partition/price.h"
#include "smdp/error.h"

namespace smdp::partition {
namespace {

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::string milliseconds(double seconds) { return text("%.4g ms", seconds * 1e3); }
std::string mebibytes(double bytes) { return text("%.1f MiB", bytes / (1 << 20)); }
std::string whole(double bytes) { return text("%.0f bytes", bytes); }

std::size_t slowest(const Partition& partition) {
  const auto is_faster = [](const Stage& one, const Stage& other) { return one.seconds() < other.seconds(); };
  const auto found = std::max_element(partition.stages.begin(), partition.stages.end(), is_faster);
  return static_cast<std::size_t>(found - partition.stages.begin());
}

// Describes the effect on the step of moving the cut behind stage `at`.
std::string moved(const Problem& problem, const Spans& spans, Ends ends, std::size_t at, bool is_earlier,
                  const std::string& what) {
  const std::size_t begin = at == 0 ? 0 : ends[at - 1];
  const std::size_t unit = is_earlier ? ends[at] - 1 : ends[at];
  ends[at] = is_earlier ? ends[at] - 1 : ends[at] + 1;
  const std::string name = "'" + problem.units[unit].name + "'";
  const std::string target = std::to_string(is_earlier ? at + 1 : at);
  if (ends[at] == begin || ends[at] == ends[at + 1]) return "its " + what + " unit is its only one";
  if (!spans.is_allowed(at, begin, ends[at]) || !spans.is_allowed(at + 1, ends[at], ends[at + 1])) {
    return name + " must stay because it is pinned or tied";
  }
  const Partition other = priced(problem, spans, ends);
  std::string result = "with " + name + " on stage " + target + " the step would take " + milliseconds(other.step);
  if (problem.memory_cap > 0 && peak(other) > problem.memory_cap) {
    result += " and need " + mebibytes(peak(other)) + ", above the cap";
  }
  return result;
}

// Tries fewer ranks first; returns 0 if no number works. Apart from pins and ties, the number of stages only matters
// for whether there are enough units.
int nearest_ranks(const Problem& problem) {
  const auto most = static_cast<int>(problem.units.size()) / problem.virtual_stages;
  // Each search takes units^2 x stages; for a long chain the error would take longer than the answer.
  double budget = 2e9;
  const auto is_possible = [&](int ranks) {
    const auto count = static_cast<double>(problem.units.size());
    budget -= count * count * ranks;
    return budget > 0 && smallest_memory(Spans(problem, in_flight(problem, ranks), 0)).has_value();
  };
  for (int ranks = problem.ranks - 1; ranks > 0; --ranks) {
    if (is_possible(ranks)) return ranks;
  }
  for (int ranks = problem.ranks + 1; ranks <= most; ++ranks) {
    if (is_possible(ranks)) return ranks;
  }
  return 0;
}

}  // namespace

std::string reason_of(const Problem& problem, const Spans& spans, const Ends& ends, const Partition& chosen) {
  const std::size_t at = slowest(chosen);
  const Stage& stage = chosen.stages[at];
  const std::string last = stage.units.size() > 1 ? " to '" + problem.units[stage.units.back()].name + "'" : "";
  std::string reason = "Stage " + std::to_string(at) + " ('" + problem.units[stage.units.front()].name + "'" + last +
                       ") is the slowest with " + milliseconds(stage.seconds()) +
                       " per microbatch, and the step takes " + milliseconds(chosen.step);
  if (at > 0) reason += "; " + moved(problem, spans, ends, at - 1, false, "first");
  if (at + 1 < chosen.stages.size()) reason += "; " + moved(problem, spans, ends, at, true, "last");
  return reason + ".";
}

std::string reason_of(const Partition& chosen) {
  const std::size_t at = slowest(chosen);
  return "Cut by the tree of modules, the costliest parts first, as SMP does: stage " + std::to_string(at) +
         " is the slowest with " + milliseconds(chosen.bottleneck) + " per microbatch.";
}

void refuse_infeasible(const Problem& problem, const Spans& spans, double tried) {
  const std::string stages = counted(static_cast<std::uint64_t>(spans.stages()), "stage");
  const auto smallest = smallest_memory(spans);
  if (!smallest) {
    const int ranks = nearest_ranks(problem);
    const std::string other = ranks > 0 ? "Use ranks = " + std::to_string(ranks) + ", move" : "Move";
    throw InvalidArgument("[smdp] there is no cut into " + stages + " that keeps every pinned unit on its stage and " +
                          "tied units together. " + other +
                          " the pins, or allow tied units on several stages (is_tied_together=false).");
  }
  const double needed = tried > 0 ? tried : memory_of(spans, *smallest);
  std::string what = "[smdp] memory_cap = " + whole(problem.memory_cap) + " is too small for " + stages + " with " +
                     problem.schedule + " and " +
                     counted(static_cast<std::uint64_t>(problem.microbatches), "microbatch") + ": the " +
                     (tried > 0 ? "smallest simulated cut" : "smallest cut") + " needs " + whole(needed) + " (" +
                     mebibytes(needed) + "). Raise the cap to that";
  // Each search takes units^2 x stages; for a long chain the error would take longer than the answer.
  double budget = 2e9;
  const auto most = static_cast<int>(problem.units.size()) / problem.virtual_stages;
  for (int ranks = problem.ranks + 1; tried == 0 && ranks <= most && budget > 0; ++ranks) {
    const auto count = static_cast<double>(problem.units.size());
    budget -= count * count * ranks;
    const Spans more(problem, in_flight(problem, ranks), problem.memory_cap);
    if (!smallest_bottleneck(more)) continue;
    what += ", or use " + std::to_string(ranks) + " ranks";
    break;
  }
  throw InvalidArgument(what + ", or keep fewer activations by checkpointing.");
}

}  // namespace smdp::partition
