#include "pipeline/schedules/rounds.h"

#include <algorithm>

namespace smdp::pipeline {

Rounds make_rounds(const GenerateOptions& options) {
  const int count = std::max(1, options.microbatches / options.stages);
  const int even = options.microbatches / count;
  const int longer = options.microbatches % count;
  Rounds rounds;
  rounds.longest = even + (longer > 0 ? 1 : 0);
  const auto steps = static_cast<std::size_t>(options.microbatches) * static_cast<std::size_t>(options.virtual_stages);
  rounds.forwards.reserve(steps);
  rounds.backwards.reserve(steps);
  int begin = 0;
  for (int round = 0; round < count; ++round) {
    const int end = begin + even + (round < longer ? 1 : 0);
    for (int turn = 0; turn < options.virtual_stages; ++turn) {
      for (int i = begin; i < end; ++i) {
        rounds.forwards.push_back({turn, i});
        rounds.backwards.push_back({options.virtual_stages - 1 - turn, i});
      }
    }
    begin = end;
  }
  return rounds;
}

}  // namespace smdp::pipeline
