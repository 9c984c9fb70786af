#include "fusion/fusion_buffer.h"

#include <string>

#include "reduce/reduce.h"
#include "smdp/observability.h"

namespace smdp {

void FusionBuffer::fill(const Gradient& gradient, std::size_t offset, void* from, double factor) {
  const std::size_t element = size_of(gradient.dtype);
  if (plan.is_alone) {
    if (from != nullptr) {
      data = static_cast<std::byte*>(from);
      if (factor != 1) scale(from, from, gradient.count, gradient.dtype, factor);
      return;
    }
    if (!memory) memory = allocate_zeros(gradient.count * element);
    data = memory.get();
    own = nullptr;
    std::memset(data, 0, gradient.count * element);
    return;
  }
  const std::size_t count = from == nullptr ? 0 : gradient.count;
  std::byte* to = place(offset);
  if (count != 0) scale(to, from, count, gradient.dtype, factor);
  std::memset(to + count * element, 0, (place_size(gradient) - count) * element);
}

void FusionBuffer::write_trace(std::size_t number, std::uint64_t step, const std::string& what) const {
  const std::string track = "buffer " + std::to_string(number);
  const trace::Arguments arguments{{"step", std::to_string(step)},
                                   {"bytes", std::to_string(plan.count * size_of(plan.dtype))},
                                   {"what", trace::quoted(what)}};
  if (first != TimePoint{}) trace::span(track, "buffer", "fuse", first, full, arguments);
  trace::span(track, "buffer", "queue", full, done->began(), arguments);
  trace::span(track, "buffer", "reduce", done->began(), done->ended(), arguments);
  trace::span(track, "buffer", "return", done->ended(), returned, arguments);
}

std::vector<FusionBuffer> make_buffers(const Layout& layout, const GradientReducerOptions& options, std::size_t hosts) {
  std::vector<FusionBuffer> buffers;
  for (const PlannedBuffer& plan : layout.buffers) {
    FusionBuffer& buffer = buffers.emplace_back();
    buffer.plan = plan;
    if (!plan.is_alone) {
      buffer.memory = allocate_zeros(plan.count * size_of(plan.dtype));
      buffer.data = buffer.memory.get();
    }
    if (plan.dtype == DType::kFloat32 && hosts > 1) buffer.codec = make_codec(options, plan.count);
  }
  return buffers;
}

}  // namespace smdp
