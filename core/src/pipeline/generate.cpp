#include "smdp/pipeline/generate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "common/argument.h"
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {
namespace {

struct Generator {
  ScheduleInfo info;
  Schedule (*make)(const GenerateOptions& options);
};

constexpr Placement kLoop = Placement::kLoop;
constexpr Placement kV = Placement::kV;

constexpr std::array kGenerators{
    Generator{{"gpipe", "all forwards, then all backwards; SMP's simple", 1, 1, kLoop, false, true, "looped_bfs"},
              gpipe},
    Generator{{"smp_interleaved", "backward first, bounded by active_microbatches; SMP's interleaved", 1, 0, kLoop,
               false, true},
              smp_interleaved},
    Generator{{"1f1b", "a forward and a backward in turn; at most p microbatches kept", 1, 1, kLoop, false, false,
               "interleaved_1f1b"},
              one_f_one_b},
    Generator{{"interleaved_1f1b", "1F1B over v virtual stages per rank: the bubble divided by v", 2},
              interleaved_1f1b},
    Generator{{"looped_bfs", "all microbatches through one virtual stage after the other", 2, 0, kLoop, false, true},
              looped_bfs},
    Generator{{"interleaved_zero_bubble", "interleaved, weight gradients fill the end", 2, 0, kLoop, true},
              interleaved_zero_bubble},
    Generator{
        {"zb_1p", "zero bubble with the activations of 1F1B", 1, 1, kLoop, true, false, "interleaved_zero_bubble"},
        zb_1p},
    Generator{{"zb_2p", "zero bubble with twice the activations, no bubble of span", 1, 1, kLoop, true, false, "zb_v"},
              zb_2p},
    Generator{
        {"zb_v", "zero bubble, two virtual stages per rank in a V", 2, 2, kV, true, false, "interleaved_zero_bubble"},
        zb_v},
    Generator{{"v_half", "a V with half of the activations", 2, 2, kV, true, false, "interleaved_zero_bubble"}, v_half},
    Generator{{"v_min", "a V with a third of the activations", 2, 2, kV, true, false, "interleaved_zero_bubble"},
              v_min},
    Generator{{"dualpipe_v", "a V with forward and backward overlapped in pairs", 2, 2, kV, true, false,
               "interleaved_zero_bubble"},
              dualpipe_v},
    Generator{{"forward_only", "evaluation: no backward", 1, 0, std::nullopt, false, true}, forward_only},
    Generator{{"auto", "the shortest of all on the given times, within a memory cap", 1, 0, std::nullopt, true, true},
              automatic},
};

const Generator& find(std::string_view name) {
  const auto found = std::find_if(kGenerators.begin(), kGenerators.end(),
                                  [&](const Generator& generator) { return generator.info.name == name; });
  if (found != kGenerators.end()) return *found;
  std::string names;
  for (const Generator& generator : kGenerators) {
    names += (names.empty() ? "" : ", ") + std::string(generator.info.name);
  }
  throw InvalidArgument("[smdp] there is no schedule '" + shown(name) + "'; allowed: " + names);
}

void check_virtual_stages(const ScheduleInfo& info, int virtual_stages) {
  if (info.virtual_stages == 0 || info.virtual_stages == virtual_stages) return;
  refuse("virtual_stages", std::to_string(virtual_stages),
         std::to_string(info.virtual_stages) + " for " + std::string(info.name) + "; " + std::string(info.others) +
             " supports other numbers");
}

void check_placement(const ScheduleInfo& info, const GenerateOptions& options) {
  if (!options.placement || info.name == "forward_only" || info.placement == options.placement) return;
  const char* own = !info.placement        ? "none for auto, which chooses the better one"
                    : info.placement == kV ? "v"
                                           : "loop";
  refuse("placement", *options.placement == kV ? "v" : "loop",
         own + (info.placement ? " for " + std::string(info.name) : ""));
}

// Returns whether the schedule has these ranks anyway, with this number of virtual stages per rank.
bool is_own_placement(const ScheduleInfo& info, const GenerateOptions& options, int virtual_stages) {
  if (info.virtual_stages != 0 && info.virtual_stages != virtual_stages) return false;
  return info.placement && place(*info.placement, options.stages, virtual_stages) == options.rank_of;
}

// Returns the options without rank_of if virtual_stages expresses the same.
GenerateOptions simplified(const ScheduleInfo& info, GenerateOptions options) {
  if (options.rank_of.empty()) return options;
  for (const int rank : options.rank_of) check_count("a rank of rank_of", rank, 0, options.stages - 1);
  if (options.placement) refuse("placement", std::string(name_of(*options.placement)), "none together with rank_of");
  const auto stages = static_cast<int>(options.rank_of.size());
  const int virtual_stages = stages / options.stages;
  if (stages % options.stages == 0 && is_own_placement(info, options, virtual_stages)) {
    options.virtual_stages = virtual_stages;
    options.rank_of.clear();
    return options;
  }
  if (info.takes_any_placement) return options;
  std::string ranks;
  for (const int rank : options.rank_of) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  std::string names;
  for (const Generator& generator : kGenerators) {
    if (generator.info.takes_any_placement) names += (names.empty() ? "" : ", ") + std::string(generator.info.name);
  }
  throw InvalidArgument("[smdp] schedule '" + std::string(info.name) + "' cannot have virtual stages on ranks " +
                        ranks + ", in this order; schedules that take any order: " + names);
}

}  // namespace

int stages_of(const GenerateOptions& options) {
  return options.rank_of.empty() ? options.stages * options.virtual_stages : static_cast<int>(options.rank_of.size());
}

Schedule blank(std::string name, Placement placement, const GenerateOptions& options) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.microbatches = options.microbatches;
  schedule.rank_of =
      options.rank_of.empty() ? place(placement, options.stages, options.virtual_stages) : options.rank_of;
  schedule.rows.resize(static_cast<std::size_t>(options.stages));
  const auto steps = static_cast<std::size_t>(options.virtual_stages) * static_cast<std::size_t>(options.microbatches);
  for (auto& row : schedule.rows) row.reserve(2 * steps);
  return schedule;
}

Costs costs_or_unit(const GenerateOptions& options) {
  return options.costs ? *options.costs : uniform_costs(stages_of(options));
}

std::vector<ScheduleInfo> schedule_names() {
  std::vector<ScheduleInfo> names;
  for (const Generator& generator : kGenerators) names.push_back(generator.info);
  return names;
}

const ScheduleInfo& schedule_info(std::string_view name) { return find(name).info; }

Schedule generate(std::string_view name, const GenerateOptions& given) {
  const Generator& generator = find(name);
  check_count("stages", given.stages, 1, kMaxRanks);
  check_count("virtual stages of rank_of", static_cast<std::int64_t>(given.rank_of.size()), 0, kMaxStages);
  const GenerateOptions options = simplified(generator.info, given);
  check_count("virtual_stages", options.virtual_stages, 1, kMaxStages / options.stages,
              " with " + std::to_string(options.stages) + " stages");
  const int stages = stages_of(options);
  check_count("microbatches", options.microbatches, 1, kMaxCells / stages,
              " with " + std::to_string(stages) + " virtual stages");
  check_count("active_microbatches", options.active_microbatches, 0, kMaxCells);
  if (options.costs) check_costs(*options.costs, stages);
  if (options.memory_cap && !(std::isfinite(*options.memory_cap) && *options.memory_cap > 0)) {
    refuse("memory_cap", shown(*options.memory_cap), "a number of bytes above 0");
  }
  if (options.rank_of.empty()) check_virtual_stages(generator.info, options.virtual_stages);
  check_placement(generator.info, options);
  return generator.make(options);
}

}  // namespace smdp::pipeline
