#include "pipeline/surroundings.h"

#include <algorithm>

namespace smdp::pipeline {

std::string surroundings(const Schedule& schedule, int rank, int index) {
  constexpr int kReach = 3;
  std::string text;
  for (int near = std::max(0, rank - 1); near <= std::min(schedule.ranks() - 1, rank + 1); ++near) {
    const auto& row = schedule.rows[static_cast<std::size_t>(near)];
    const int length = static_cast<int>(row.size());
    const int begin = std::clamp(index - kReach, 0, length);
    const int end = std::clamp(index + kReach + 1, 0, length);
    text += "\n  rank " + std::to_string(near) + ":";
    if (begin > 0) text += " ..";
    for (int i = begin; i < end; ++i) {
      const std::string action = to_text(row[static_cast<std::size_t>(i)]);
      text += near == rank && i == index ? " [" + action + "]" : " " + action;
    }
    if (end < length) text += " ..";
  }
  return text;
}

}  // namespace smdp::pipeline
