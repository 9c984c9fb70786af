// Microbatches in flight, by the closed forms of the schedules. If a paper gives the peak only for the worst rank,
// every rank gets it; if the peak was only measured (V-Min), the bound is above all measurements.
#include "memory/schedules.h"

#include <algorithm>

#include "common/argument.h"
#include "smdp/memory.h"
#include "smdp/pipeline/generate.h"

namespace smdp::memory {
namespace {

// Rank r of p, m microbatches, v virtual stages; `round`: microbatches in the longest round of interleaved schedules.
struct Shape {
  double p, r, m, v, active, round;
};

using Form = double (*)(const Shape& at);

struct Row {
  const char* name;
  Form form;
};

constexpr Row kRows[] = {
    {"gpipe", [](const Shape& at) { return at.m; }},
    // Every virtual stage may keep its part of those in flight.
    {"smp_interleaved", [](const Shape& at) { return at.p == 1 ? 1 : at.active; }},
    {"1f1b", [](const Shape& at) { return at.p - at.r; }},
    // A round in every virtual stage but the last, two for every hop to the last rank, and one in progress.
    {"interleaved_1f1b", [](const Shape& at) { return ((at.v - 1) * at.round + 2 * (at.p - 1 - at.r) + 1) / at.v; }},
    {"looped_bfs", [](const Shape& at) { return at.m; }},
    // One for every hop, one in progress, and r whose weight gradient waits.
    {"interleaved_zero_bubble", [](const Shape& at) { return ((at.v - 1) * at.round + at.p) / at.v; }},
    {"zb_1p", [](const Shape& at) { return at.p; }},
    {"zb_2p", [](const Shape& at) { return 2 * at.p - 1; }},
    {"zb_v", [](const Shape& at) { return at.p; }},
    {"v_half", [](const Shape& at) { return at.p / 2 + 1; }},
    {"v_min", [](const Shape& at) { return at.p / 3 + 4.0 / 3; }},
    {"dualpipe_v", [](const Shape& at) { return at.p + 0.5; }},
};

// There are max(1, m / p) rounds, as equal as possible; pipeline/schedules/rounds.h makes them.
std::int64_t longest_round(std::int64_t pipeline, std::int64_t microbatches) {
  const std::int64_t rounds = std::max<std::int64_t>(1, microbatches / pipeline);
  return (microbatches + rounds - 1) / rounds;
}

const Row& row_of(const std::string& schedule) {
  std::string known;
  for (const Row& row : kRows) {
    if (schedule == row.name) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  refuse("schedule", "'" + shown(schedule) + "'", known);
}

}  // namespace

bool is_v_shape(const std::string& schedule) {
  return pipeline::schedule_info(row_of(schedule).name).placement == pipeline::Placement::kV;
}

bool runs_all_forwards_first(const std::string& schedule) { return schedule == "gpipe" || schedule == "looped_bfs"; }

double in_flight(const std::string& schedule, std::int64_t pipeline, std::int64_t rank, std::int64_t microbatches,
                 std::int64_t virtual_stages, std::int64_t active_microbatches) {
  check_count("pipeline", pipeline, 1, 1 << 20);
  check_count("rank", rank, 0, pipeline - 1);
  check_count("microbatches", microbatches, 1, 1 << 30);
  check_count("virtual_stages", virtual_stages, 1, 1 << 20);
  check_count("active_microbatches", active_microbatches, 0, 1 << 30);
  const Row& row = row_of(schedule);
  const int only = pipeline::schedule_info(row.name).virtual_stages;
  if (only != 0 && virtual_stages != only) {
    refuse("virtual_stages", std::to_string(virtual_stages), std::to_string(only) + ", with the schedule " + schedule);
  }
  const auto active = static_cast<double>(active_microbatches == 0 ? pipeline + 2 : active_microbatches);
  const auto count = static_cast<double>(microbatches);
  return std::min(count, row.form({static_cast<double>(pipeline), static_cast<double>(rank), count,
                                   static_cast<double>(virtual_stages), active,
                                   static_cast<double>(longest_round(pipeline, microbatches))}));
}

}  // namespace smdp::memory
