#include "sharding/check.h"

#include <algorithm>
#include <string>

namespace smdp::sharding {
namespace {

constexpr double kMostElements = static_cast<double>(std::int64_t{1} << 48);

// Rows of split parameters are separate pieces, and all of them are in memory at once.
constexpr double kMostPieces = 1 << 22;

}  // namespace

void check(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    check_count("outer", parameter.outer, 0, kMostBytes);
    check_count("length", parameter.length, 0, kMostBytes);
    check_count("inner", parameter.inner, 0, kMostBytes);
    check_count("element_size", parameter.element_size, 1, 64);
    if ((parameter.element_size & (parameter.element_size - 1)) != 0) {
      refuse("element_size", std::to_string(parameter.element_size), "1, 2, 4, 8, 16, 32, 64");
    }
    const auto outer = static_cast<double>(parameter.outer);
    const auto length = static_cast<double>(parameter.length);
    const auto inner = static_cast<double>(parameter.inner);
    // Products of two must not overflow either if the third is 0.
    const double most = std::max({outer * length, length * inner, outer * length * inner});
    if (most > kMostElements) {
      refuse("outer x length x inner",
             std::to_string(parameter.outer) + " x " + std::to_string(parameter.length) + " x " +
                 std::to_string(parameter.inner),
             "at most 2^48 elements");
    }
  }
}

void check(const std::vector<Parameter>& parameters, const Layout& layout) {
  check(parameters);
  check_count("pipeline", layout.pipeline, 1, kMostRanks);
  check_count("tensor", layout.tensor, 1, kMostRanks);
  check_count("data", layout.data, 1, kMostRanks);
  const double size =
      static_cast<double>(layout.pipeline) * static_cast<double>(layout.tensor) * static_cast<double>(layout.data);
  if (size > static_cast<double>(kMostRanks)) {
    refuse(
        "pipeline x tensor x data",
        std::to_string(layout.pipeline) + " x " + std::to_string(layout.tensor) + " x " + std::to_string(layout.data),
        "at most " + std::to_string(kMostRanks) + " ranks");
  }
  if (layout.stages.size() != parameters.size()) {
    refuse("stages", std::to_string(layout.stages.size()) + " lists",
           "one for each of the " + std::to_string(parameters.size()) + " parameters");
  }
  double pieces = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::vector<std::int64_t>& stages = layout.stages[i];
    if (stages.empty()) throw InvalidArgument("[smdp] parameter " + std::to_string(i) + " is on no stage.");
    for (const std::int64_t stage : stages) check_count("stage", stage, 0, layout.pipeline - 1);
    for (std::size_t j = 1; j < stages.size(); ++j) {
      if (stages[j] <= stages[j - 1]) {
        throw InvalidArgument("[smdp] the stages of parameter " + std::to_string(i) + " must ascend: " +
                              std::to_string(stages[j]) + " comes after " + std::to_string(stages[j - 1]));
      }
    }
    const double rows = parameters[i].is_split && layout.tensor > 1 ? static_cast<double>(parameters[i].outer) : 1;
    pieces += rows * static_cast<double>(layout.tensor) * static_cast<double>(stages.size());
  }
  if (pieces > kMostPieces) {
    throw InvalidArgument("[smdp] tensor parallelism cuts these parameters into " +
                          std::to_string(static_cast<std::int64_t>(std::min(pieces, 1e18))) +
                          " pieces; allowed: at most 2^22. Plan fewer parameters at a time.");
  }
  if (layout.ranks.empty()) return;
  std::vector<std::int64_t> sorted = layout.ranks;
  std::sort(sorted.begin(), sorted.end());
  bool is_permutation = static_cast<double>(sorted.size()) == size;
  for (std::size_t i = 0; i < sorted.size() && is_permutation; ++i) {
    is_permutation = sorted[i] == static_cast<std::int64_t>(i);
  }
  if (!is_permutation) {
    throw InvalidArgument("[smdp] a layout's ranks must be a permutation of 0 to " +
                          std::to_string(static_cast<std::int64_t>(size) - 1));
  }
}

}  // namespace smdp::sharding
