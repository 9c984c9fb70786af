#include "memory/stages.h"

#include "common/argument.h"
#include "memory/schedules.h"

namespace smdp::memory {
namespace {

void check_sizes(const std::vector<std::int64_t>& sizes, std::int64_t layers, std::int64_t stages) {
  const std::string needed =
      std::to_string(stages) + " sizes (pipeline x virtual_stages) with the sum " + std::to_string(layers);
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    check_count("stage_sizes", size, 0, layers);
    sum += size;
  }
  if (static_cast<std::int64_t>(sizes.size()) != stages || sum != layers) {
    refuse("stage_sizes", std::to_string(sizes.size()) + " sizes with the sum " + std::to_string(sum), needed);
  }
}

}  // namespace

std::vector<std::int64_t> even_stages(std::int64_t layers, std::int64_t stages) {
  check_count("layers", layers, 1);
  check_count("stages", stages, 1, 1 << 20);  // the list has this many entries
  if (stages > layers) {
    refuse("pipeline x virtual_stages", std::to_string(stages), "at most the " + std::to_string(layers) + " layers");
  }
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(stages), layers / stages);
  const std::int64_t rest = layers % stages;
  const std::int64_t first = (stages - rest) / 2;
  for (std::int64_t i = 0; i < rest; ++i) ++sizes[static_cast<std::size_t>(first + i)];
  return sizes;
}

std::vector<std::vector<Span>> spans_of(const Pieces& pieces, const Setting& setting) {
  const auto layers = static_cast<std::int64_t>(pieces.layers);
  const std::int64_t stages = setting.pipeline * setting.virtual_stages;
  std::vector<std::int64_t> sizes = setting.stage_sizes;
  if (sizes.empty()) {
    sizes = even_stages(layers, stages);
  } else {
    check_sizes(sizes, layers, stages);
  }
  std::vector<std::vector<Span>> ranks(static_cast<std::size_t>(setting.pipeline));
  const bool is_v = is_v_shape(setting.schedule);
  std::size_t piece = 0;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    Span span{piece, piece};
    if (stage == 0) {
      while (!pieces.list[span.end].is_layer) ++span.end;
    }
    for (std::int64_t left = sizes[static_cast<std::size_t>(stage)]; left > 0; ++span.end) {
      if (pieces.list[span.end].is_layer) --left;
    }
    if (stage == stages - 1) span.end = pieces.list.size();
    piece = span.end;
    const std::int64_t turn = stage % setting.pipeline;
    const bool is_back = is_v && stage >= setting.pipeline;
    ranks[static_cast<std::size_t>(is_back ? setting.pipeline - 1 - turn : turn)].push_back(span);
  }
  return ranks;
}

}  // namespace smdp::memory
