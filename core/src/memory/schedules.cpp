// Microbatches in flight, by the closed forms of the schedules. Where a paper gives a peak for the worst rank only,
// every rank gets that; where the peak was only ever measured (V-Min), the bound is above all that was.
#include "memory/schedules.h"

#include <algorithm>

#include "common/argument.h"
#include "smdp/memory.h"

namespace smdp::memory {
namespace {

using Form = double (*)(double p, double r, double m, double v, double active);

struct Row {
  const char* name;
  Form form;
  std::int64_t virtual_stages;  // the only number the schedule has; 0: any
};

constexpr Row kRows[] = {
    {"gpipe", [](double, double, double m, double, double) { return m; }, 1},
    {"smp_interleaved", [](double p, double, double, double, double active) { return p == 1 ? 1 : active; }, 1},
    {"1f1b", [](double p, double r, double, double, double) { return p - r; }, 1},
    {"interleaved_1f1b",
     [](double p, double r, double, double v, double) { return ((v - 1) * p + 2 * (p - 1 - r) + 1) / v; }, 0},
    {"looped_bfs", [](double, double, double m, double, double) { return m; }, 0},
    // (v-1)p + (p-1-r) forwards of warm-up, one under way, and r whose weight gradient waits.
    {"interleaved_zero_bubble", [](double p, double, double, double, double) { return p; }, 0},
    {"zb_1p", [](double p, double, double, double, double) { return p; }, 1},
    {"zb_2p", [](double p, double, double, double, double) { return 2 * p - 1; }, 1},
    {"zb_v", [](double p, double, double, double, double) { return p; }, 2},
    {"v_half", [](double p, double, double, double, double) { return p / 2 + 1; }, 2},
    {"v_min", [](double p, double, double, double, double) { return p / 3 + 4.0 / 3; }, 2},
    {"dualpipe_v", [](double p, double, double, double, double) { return p + 0.5; }, 2},
};

}  // namespace

bool is_v_shape(const std::string& schedule) {
  return schedule == "zb_v" || schedule == "v_half" || schedule == "v_min" || schedule == "dualpipe_v";
}

bool runs_all_forwards_first(const std::string& schedule) { return schedule == "gpipe" || schedule == "looped_bfs"; }

double in_flight(const std::string& schedule, std::int64_t pipeline, std::int64_t rank, std::int64_t microbatches,
                 std::int64_t virtual_stages, std::int64_t active_microbatches) {
  check_count("pipeline", pipeline, 1, 1 << 20);
  check_count("rank", rank, 0, pipeline - 1);
  check_count("microbatches", microbatches, 1, 1 << 30);
  check_count("virtual_stages", virtual_stages, 1, 1 << 20);
  check_count("active_microbatches", active_microbatches, 0, 1 << 30);
  std::string known;
  for (const Row& row : kRows) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (schedule != row.name) continue;
    if (row.virtual_stages != 0 && virtual_stages != row.virtual_stages) {
      refuse("virtual_stages", std::to_string(virtual_stages),
             std::to_string(row.virtual_stages) + ", with the schedule " + schedule);
    }
    const auto active = static_cast<double>(active_microbatches == 0 ? pipeline + 2 : active_microbatches);
    return std::min(static_cast<double>(microbatches),
                    row.form(static_cast<double>(pipeline), static_cast<double>(rank),
                             static_cast<double>(microbatches), static_cast<double>(virtual_stages), active));
  }
  refuse("schedule", "'" + schedule + "'", known);
}

}  // namespace smdp::memory
