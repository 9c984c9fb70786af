#include "smdp/pipeline/generate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "pipeline/schedules/schedules.h"
#include "smdp/error.h"

namespace smdp::pipeline {
namespace {

struct Generator {
  ScheduleInfo info;
  Schedule (*make)(const GenerateOptions& options);
};

constexpr std::array kGenerators{
    Generator{{"gpipe", "all forwards, then all backwards; SMP's simple"}, gpipe},
    Generator{{"smp_interleaved", "backward first, bounded by active_microbatches; SMP's interleaved"},
              smp_interleaved},
    Generator{{"1f1b", "a forward and a backward in turn; at most p microbatches kept"}, one_f_one_b},
    Generator{{"interleaved_1f1b", "1F1B over v virtual stages per rank: the bubble divided by v", 2},
              interleaved_1f1b},
    Generator{{"looped_bfs", "all microbatches through one virtual stage after the other", 2}, looped_bfs},
    Generator{{"interleaved_zero_bubble", "interleaved, weight gradients fill the end", 2}, interleaved_zero_bubble},
    Generator{{"zb_1p", "zero bubble with the activations of 1F1B"}, zb_1p},
    Generator{{"zb_2p", "zero bubble with twice the activations, no bubble of span"}, zb_2p},
    Generator{{"zb_v", "zero bubble, two virtual stages per rank in a V", 2}, zb_v},
    Generator{{"v_half", "a V with half of the activations", 2}, v_half},
    Generator{{"v_min", "a V with a third of the activations", 2}, v_min},
    Generator{{"dualpipe_v", "a V with forward and backward overlapped in pairs", 2}, dualpipe_v},
    Generator{{"forward_only", "evaluation: no backward"}, forward_only},
    Generator{{"auto", "the shortest of all on the given times, within a memory cap"}, automatic},
};

void require_range(const char* field, int value, int least, int most, const std::string& why = "") {
  if (value >= least && value <= most) return;
  throw InvalidArgument("[smdp] " + std::string(field) + "=" + std::to_string(value) + " is not valid; allowed" + why +
                        ": " + std::to_string(least) + " to " + std::to_string(most) + ".");
}

}  // namespace

Schedule blank(std::string name, Placement placement, const GenerateOptions& options) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.microbatches = options.microbatches;
  schedule.rank_of = place(placement, options.stages, options.virtual_stages);
  schedule.rows.resize(static_cast<std::size_t>(options.stages));
  const auto steps = static_cast<std::size_t>(options.virtual_stages) * static_cast<std::size_t>(options.microbatches);
  for (auto& row : schedule.rows) row.reserve(2 * steps);
  return schedule;
}

void require_virtual_stages(const char* name, const GenerateOptions& options, int count, const char* instead) {
  if (options.virtual_stages == count) return;
  throw InvalidArgument("[smdp] " + std::string(name) + " has exactly " + std::to_string(count) +
                        (count == 1 ? " virtual stage" : " virtual stages") + " per rank: virtual_stages=" +
                        std::to_string(options.virtual_stages) + "; the nearest number that it can have is " +
                        std::to_string(count) + ", and " + instead + " has others.");
}

Costs costs_or_unit(const GenerateOptions& options) {
  return options.costs ? *options.costs : uniform_costs(options.stages * options.virtual_stages);
}

std::vector<ScheduleInfo> schedule_names() {
  std::vector<ScheduleInfo> names;
  for (const Generator& generator : kGenerators) names.push_back(generator.info);
  return names;
}

Schedule generate(std::string_view name, const GenerateOptions& options) {
  const auto found = std::find_if(kGenerators.begin(), kGenerators.end(),
                                  [&](const Generator& generator) { return generator.info.name == name; });
  if (found == kGenerators.end()) {
    std::string names;
    for (const Generator& generator : kGenerators) {
      names += (names.empty() ? "" : ", ") + std::string(generator.info.name);
    }
    throw InvalidArgument("[smdp] there is no schedule '" + std::string(name.substr(0, 60)) + "'; allowed: " + names +
                          ".");
  }
  require_range("stages", options.stages, 1, kMaxRanks);
  require_range("virtual_stages", options.virtual_stages, 1, kMaxStages / options.stages,
                " with " + std::to_string(options.stages) + " stages");
  const int stages = options.stages * options.virtual_stages;
  require_range("microbatches", options.microbatches, 1, kMaxCells / stages,
                " with " + std::to_string(stages) + " virtual stages");
  require_range("active_microbatches", options.active_microbatches, 0, kMaxCells);
  if (options.costs) check_costs(*options.costs, stages);
  if (options.memory_cap && !(std::isfinite(*options.memory_cap) && *options.memory_cap > 0)) {
    throw InvalidArgument("[smdp] memory_cap=" + std::to_string(*options.memory_cap) +
                          " is not valid; allowed: a number of bytes above 0.");
  }
  return found->make(options);
}

}  // namespace smdp::pipeline
