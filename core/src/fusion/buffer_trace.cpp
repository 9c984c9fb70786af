#include <string>

#include "fusion/fusion_buffer.h"
#include "smdp/observability.h"

namespace smdp {

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

}  // namespace smdp
