#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "common/argument.h"
#include "smdp/pipeline/formats.h"

namespace smdp::pipeline {
namespace {

char letter_of(const Action& action) {
  const int microbatch = std::max(0, action.microbatch);
  switch (action.kind) {
    case ActionKind::kForward:
      return static_cast<char>('0' + microbatch % 10);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return static_cast<char>('a' + microbatch % 26);
    case ActionKind::kBackwardWeight:
      return ':';
    case ActionKind::kOverlap:
      return '*';
    default:
      return '|';
  }
}

// A character is as long as the shortest action, if that fits.
double time_of_cell(const Simulation& simulation, int width) {
  double shortest = simulation.makespan;
  for (const auto& row : simulation.timeline) {
    for (const Interval& times : row) {
      if (times.end > times.start) shortest = std::min(shortest, times.end - times.start);
    }
  }
  return std::max(shortest, simulation.makespan / width);
}

}  // namespace

std::string gantt(const Schedule& schedule, const Simulation& simulation, int width) {
  check_count("width", width, 20, 100'000);
  const std::string last = std::to_string(schedule.ranks() - 1);
  const int room = std::max(8, width - static_cast<int>(last.size()) - 6);
  const double cell = time_of_cell(simulation, room);
  const auto columns = cell > 0 ? static_cast<std::size_t>(std::lround(simulation.makespan / cell)) : 0;
  double first = cell > 0 ? simulation.makespan : 0;
  for (const auto& row : simulation.timeline) {
    if (!row.empty()) first = std::min(first, row.front().start);
  }
  std::string text;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    const auto& times = simulation.timeline[static_cast<std::size_t>(rank)];
    std::string line(columns, '.');
    std::size_t index = 0;
    for (std::size_t column = 0; column < columns; ++column) {
      const double middle = first + (static_cast<double>(column) + 0.5) * cell;
      while (index < times.size() && times[index].end <= middle) ++index;
      if (index < times.size() && times[index].start <= middle) line[column] = letter_of(row[index]);
    }
    const std::string number = std::to_string(rank);
    text += "rank " + std::string(last.size() - number.size(), ' ') + number + " " + line + "\n";
  }
  return text;
}

}  // namespace smdp::pipeline
