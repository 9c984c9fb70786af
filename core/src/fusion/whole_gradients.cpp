#include "fusion/whole_gradients.h"

#include <algorithm>

namespace smdp {
namespace {

std::size_t bytes_of(const Gradient& gradient) { return gradient.count * size_of(gradient.dtype); }

// Returns the owner of each gradient. Others than those in `whole` keep 0.
std::vector<std::size_t> balanced(std::vector<std::size_t> whole, const std::vector<Gradient>& gradients,
                                  std::size_t owners) {
  std::stable_sort(whole.begin(), whole.end(), [&](std::size_t one, std::size_t other) {
    return bytes_of(gradients[one]) > bytes_of(gradients[other]);
  });
  std::vector<std::size_t> owner(gradients.size());
  std::vector<std::size_t> held(owners);
  for (const std::size_t index : whole) {
    const auto least = std::min_element(held.begin(), held.end());
    owner[index] = static_cast<std::size_t>(least - held.begin());
    *least += bytes_of(gradients[index]);
  }
  return owner;
}

}  // namespace

void give_to_owners(Layout& layout, const std::vector<Gradient>& gradients, std::size_t owners) {
  std::vector<std::size_t> whole;
  for (const PlannedBuffer& buffer : layout.buffers) {
    for (const std::size_t index : buffer.members) {
      if (gradients[index].is_whole) whole.push_back(index);
    }
  }
  const std::vector<std::size_t> owner = balanced(whole, gradients, owners);
  for (PlannedBuffer& buffer : layout.buffers) {
    if (!gradients[buffer.members.front()].is_whole) continue;
    std::stable_sort(buffer.members.begin(), buffer.members.end(),
                     [&owner](std::size_t one, std::size_t other) { return owner[one] < owner[other]; });
    std::size_t offset = 0;
    std::size_t member = 0;
    for (std::size_t number = 0; number < owners; ++number) {
      for (; member < buffer.members.size() && owner[buffer.members[member]] == number; ++member) {
        const std::size_t index = buffer.members[member];
        layout.places[index].offset = offset;
        offset += buffer.is_alone ? gradients[index].count : place_size(gradients[index]);
      }
      buffer.ends.push_back(offset);
    }
  }
}

}  // namespace smdp
