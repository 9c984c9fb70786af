#include "fusion/layout.h"

#include <algorithm>
#include <map>
#include <utility>

namespace smdp {
namespace {

// A buffer holds at most this fraction (one in four) of what remains.
constexpr std::size_t kPartOfRest = 4;

}  // namespace

std::size_t place_size(const Gradient& gradient) {
  const std::size_t unit = std::max<std::size_t>(1, 64 / size_of(gradient.dtype));
  return (gradient.count + unit - 1) / unit * unit;
}

std::size_t Layout::bytes() const {
  std::size_t sum = 0;
  for (const PlannedBuffer& buffer : buffers) sum += buffer.count * size_of(buffer.dtype);
  return sum;
}

Layout lay_out(const std::vector<Gradient>& gradients, const std::vector<std::size_t>& order,
               const cost::FusionSizes& sizes, std::size_t cap) {
  Layout layout;
  layout.places.resize(gradients.size());
  std::size_t rest = 0;
  for (const Gradient& gradient : gradients) rest += gradient.count * size_of(gradient.dtype);
  std::map<std::pair<DType, bool>, PlannedBuffer> open;  // gradients that must not be cut are not among others
  const auto close = [&](PlannedBuffer& buffer) {
    for (const std::size_t index : buffer.members) layout.places[index].buffer = layout.buffers.size();
    layout.buffers.push_back(std::move(buffer));
    buffer = {};
  };
  for (const std::size_t index : order) {
    const Gradient& gradient = gradients[index];
    const std::size_t element = size_of(gradient.dtype);
    if (gradient.count * element >= sizes.alone) {
      layout.places[index] = {layout.buffers.size(), 0};
      layout.buffers.push_back({gradient.dtype, gradient.count, true, {index}});
      rest -= gradient.count * element;
      continue;
    }
    const bool is_first = layout.buffers.empty();
    const std::size_t limit = is_first ? sizes.smallest : std::clamp(rest / kPartOfRest, sizes.smallest, sizes.usual);
    PlannedBuffer& buffer = open[{gradient.dtype, gradient.is_whole}];
    // A gradient that does not fit any more begins a new buffer, unless the current one is hardly worth a message.
    const std::size_t filled = buffer.count * element;
    if (filled + gradient.count * element > (filled > limit / 2 ? limit : cap) && filled != 0) close(buffer);
    buffer.dtype = gradient.dtype;
    layout.places[index].offset = buffer.count;
    buffer.members.push_back(index);
    buffer.count += place_size(gradient);
    rest -= gradient.count * element;
    if (buffer.count * element >= limit) close(buffer);
  }
  for (auto& [kind, buffer] : open) {
    if (!buffer.members.empty()) close(buffer);
  }
  return layout;
}

}  // namespace smdp
