// Means of gradients that no rank used in a step: a codec sends what it has kept back even for such a gradient. All
// ranks keep the same bits, or with shards each rank those of its own, and add them to the next mean that is used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace smdp {

class LateMeans {
 public:
  explicit LateMeans(std::size_t gradients) : values_(gradients) {}

  // Empty if there is none.
  std::vector<float>& operator[](std::size_t index) { return values_[index]; }

  void rescale(float factor) {
    for (std::vector<float>& one : values_) {
      for (float& value : one) value *= factor;
    }
  }

  void add_to(std::size_t index, float* mean) const {
    const std::vector<float>& late = values_[index];
    for (std::size_t i = 0; i < late.size(); ++i) mean[i] += late[i];
  }

  // Called at the end of a step.
  void keep(std::size_t index, const float* mean, std::size_t count, bool is_taken) {
    values_[index].clear();
    if (is_taken || std::all_of(mean, mean + count, [](float value) { return value == 0; })) return;
    values_[index].assign(mean, mean + count);
  }

 private:
  std::vector<std::vector<float>> values_;  // by gradient
};

}  // namespace smdp
