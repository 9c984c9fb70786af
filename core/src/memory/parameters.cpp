#include "memory/parameters.h"

#include <algorithm>

#include "common/argument.h"

namespace smdp::memory {
namespace {

// Query, keys, values and output.
Split attention(const Layers& layer, std::int64_t tensor) {
  const auto hidden = static_cast<double>(layer.hidden);
  const auto queries = static_cast<double>(layer.heads * layer.head_size);
  const std::int64_t copies = std::max<std::int64_t>(1, tensor / layer.key_value_heads);
  const auto keys = static_cast<double>(layer.key_value_heads * layer.head_size * copies);
  Split split{2 * hidden * queries + 2 * hidden * keys, 0};
  if (layer.has_query_key_value_bias) split.divided += queries + 2 * keys;
  if (layer.has_output_bias) split.whole += hidden;
  if (layer.has_query_key_norm) split.whole += 2 * static_cast<double>(layer.head_size);
  return split;
}

Split mlp(const Layers& layer) {
  const auto hidden = static_cast<double>(layer.hidden);
  const auto ffn = static_cast<double>(layer.ffn);
  const double inner = layer.is_gated ? 2 : 1;
  Split split{(inner + 1) * hidden * ffn, 0};
  if (layer.has_mlp_bias) {
    split.divided += inner * ffn;
    split.whole += hidden;
  }
  if (layer.experts == 0) return split;
  const auto experts = static_cast<double>(layer.experts);
  split.divided *= experts;
  split.whole = split.whole * experts + hidden * experts;  // the router
  split.divided += 3 * hidden * static_cast<double>(layer.shared_ffn);
  return split;
}

}  // namespace

void check(const Layers& layer) {
  check_count("layers.count", layer.count, 1, 1 << 20);
  check_count("layers.hidden", layer.hidden, 1, 1 << 24);
  check_count("layers.heads", layer.heads, 1, 1 << 20);
  check_count("layers.key_value_heads", layer.key_value_heads, 1, layer.heads);
  if (layer.heads % layer.key_value_heads != 0) {
    refuse("layers.key_value_heads", std::to_string(layer.key_value_heads),
           "a divisor of the " + std::to_string(layer.heads) + " heads");
  }
  check_count("layers.head_size", layer.head_size, 1, 1 << 20);
  check_count("layers.ffn", layer.ffn, 0, 1 << 28);
  check_count("layers.norms", layer.norms, 0, 16);
  check_count("layers.norm_width", layer.norm_width, 0, 2);
  check_count("layers.experts", layer.experts, 0, 1 << 20);
  check_count("layers.experts_per_token", layer.experts_per_token, layer.experts == 0 ? 0 : 1, layer.experts);
  check_count("layers.shared_ffn", layer.shared_ffn, 0, 1 << 28);
  check_count("layers.extra", layer.extra, 0);
}

void check(const Architecture& architecture) {
  check_count("hidden", architecture.hidden, 1, 1 << 24);
  check_count("vocabulary", architecture.vocabulary, 0, 1 << 30);
  check_count("positions", architecture.positions, 0, 1 << 30);
  check_count("embedding_extra", architecture.embedding_extra, 0);
  check_count("head_extra", architecture.head_extra, 0);
  check_count("outputs", architecture.outputs, 0, 1 << 30);
  check_count("sequence", architecture.sequence, 0, 1 << 30);
  if (architecture.is_tied && architecture.outputs != architecture.vocabulary) {
    refuse("outputs", std::to_string(architecture.outputs),
           std::to_string(architecture.vocabulary) +
               ", the size of the vocabulary, because the logits are tied to the embedding");
  }
  if (architecture.layers.empty()) refuse("layers", "[]", "at least one run of layers");
  std::int64_t count = 0;
  for (const Layers& layer : architecture.layers) {
    check(layer);
    count += layer.count;
    check_count("layers in all", count, 1, 1 << 20);
  }
}

Split layer_parameters(const Layers& layer, std::int64_t tensor) {
  Split split = mlp(layer);
  for (int i = 0; i < (layer.has_cross_attention ? 2 : 1); ++i) {
    const Split one = attention(layer, tensor);
    split.divided += one.divided;
    split.whole += one.whole;
  }
  split.whole += static_cast<double>(layer.norms * layer.norm_width * layer.hidden + layer.extra);
  return split;
}

Split embedding_parameters(const Architecture& architecture) {
  const auto rows = static_cast<double>(architecture.vocabulary + architecture.positions);
  return {rows * static_cast<double>(architecture.hidden), static_cast<double>(architecture.embedding_extra)};
}

double output_matrix(const Architecture& architecture) {
  return static_cast<double>(architecture.outputs) * static_cast<double>(architecture.hidden);
}

Split head_parameters(const Architecture& architecture) {
  return {architecture.is_tied ? 0 : output_matrix(architecture), static_cast<double>(architecture.head_extra)};
}

bool has_decoder_embedding(const Architecture& architecture) {
  return architecture.vocabulary > 0 && !architecture.layers.front().has_cross_attention &&
         architecture.layers.back().has_cross_attention;
}

double parameters(const Architecture& architecture) {
  check(architecture);
  double sum = embedding_parameters(architecture).local(1) + head_parameters(architecture).local(1);
  for (const Layers& layer : architecture.layers) {
    sum += static_cast<double>(layer.count) * layer_parameters(layer, 1).local(1);
  }
  return sum;
}

}  // namespace smdp::memory
