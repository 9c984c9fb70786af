// Means that nobody has taken: a codec sends what it has kept back also for a gradient that nobody had in a step. All
// ranks have the same bits of them, and put them to the next mean that is taken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace smdp {

class LateMeans {
 public:
  explicit LateMeans(std::size_t gradients) : values_(gradients) {}

  // Empty: there is none.
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

  // The step is over.
  void keep(std::size_t index, const float* mean, std::size_t count, bool is_taken) {
    values_[index].clear();
    if (is_taken || std::all_of(mean, mean + count, [](float value) { return value == 0; })) return;
    values_[index].assign(mean, mean + count);
  }

 private:
  std::vector<std::vector<float>> values_;  // by gradient
};

}  // namespace smdp
