// Activations of a transformer layer, from the list of tensors that its backward needs (arXiv 2205.05198, section 4.1,
// whose 34 sbh + 5 as^2b is this list for a GPT with ffn = 4h in 16 bits):
//
//   whole over t         every norm's input and output, and an unfused norm's normalized value (in 16 bits this and the
//                        input in fp32: 4 bytes more either way); a byte per dropped-out element of every branch
//   divided by t         query, key, value, and the output matrix' input; of normed queries and keys the input and the
//                        normalized value; the MLP's first output and second input (the same one for ReLU), of a
//                        gated one both first outputs, the activation and the product
//   divided, s^2         softmax, also before its cast, and with dropout its mask and its output. Keys and values are
//                        repeated for all heads. With flash attention they are not, and 4 bytes per row replace the
//                        matrix
//   mixture of experts   the MLP's tensors, and each token's input and output once per expert that it takes; the
//                        router's probabilities in fp32
//
// Rotations and unfused activation functions are not in the list.
#include "memory/activations.h"

#include <algorithm>

#include "common/argument.h"
#include "memory/parameters.h"
#include "memory/setting.h"

namespace smdp::memory {
namespace {

double source_tokens(const Setting& setting) {
  return static_cast<double>(setting.microbatch_size) * static_cast<double>(setting.sequence);
}

double length(const Layers& layer, const Setting& setting) {
  const bool is_decoder = layer.has_cross_attention && setting.decoder_sequence != 0;
  return static_cast<double>(is_decoder ? setting.decoder_sequence : setting.sequence);
}

double width(std::int64_t heads, const Layers& layer) { return static_cast<double>(heads * layer.head_size); }

// Query, key, value and the last matrix' input, on one of t ranks.
double attention(const Layers& layer, const Setting& setting, double keys_tokens) {
  const double element = element_bytes(setting);
  const double rows = tokens(layer, setting);
  const double queries = width(layer.heads, layer) / static_cast<double>(setting.tensor);
  const double own =
      std::max(width(layer.key_value_heads, layer) / static_cast<double>(setting.tensor), width(1, layer));
  const double keys = setting.flash_attention ? own : queries;
  double sum = element * (2 * rows * queries + 2 * keys_tokens * keys);
  if (layer.has_query_key_norm) sum += (element + 4) * (rows * queries + keys_tokens * own);
  return sum;
}

double mlp(const Layers& layer, const Setting& setting) {
  const double element = element_bytes(setting);
  const auto t = static_cast<double>(setting.tensor);
  const double tensors = (layer.is_gated ? 4 : 2) - (layer.is_relu ? 1 : 0);
  const double one = element * tensors * static_cast<double>(layer.ffn) / t;
  if (layer.experts == 0) return tokens(layer, setting) * one;
  const double moved = 2 * element * static_cast<double>(layer.hidden) / whole_divisor(setting);
  const double shared = element * 4 * static_cast<double>(layer.shared_ffn) / t;
  return tokens(layer, setting) * (static_cast<double>(layer.experts_per_token) * (one + moved) + shared +
                                   4.0 * static_cast<double>(layer.experts));
}

}  // namespace

double element_bytes(const Setting& setting) { return setting.precision == "fp32" ? 4 : 2; }

double tokens(const Layers& layer, const Setting& setting) {
  return static_cast<double>(setting.microbatch_size) * length(layer, setting);
}

double whole_divisor(const Setting& setting) {
  return setting.sequence_parallel ? static_cast<double>(setting.tensor) : 1;
}

double score_activations(const Layers& layer, const Setting& setting) {
  const double rows = tokens(layer, setting) * static_cast<double>(layer.heads) / static_cast<double>(setting.tensor);
  const double element = element_bytes(setting);
  const double columns =
      length(layer, setting) + (layer.has_cross_attention ? static_cast<double>(setting.sequence) : 0);
  if (setting.flash_attention) return rows * 4 * (layer.has_cross_attention ? 2 : 1);
  double each = layer.has_dropout ? 2 * element + 1 : element;
  if (layer.has_fp32_softmax && element < 4) each += 4;
  return rows * columns * each;
}

double gradient_activations(const Layers& layer, const Setting& setting) {
  const auto t = static_cast<double>(setting.tensor);
  const double element = element_bytes(setting) * tokens(layer, setting) / t;
  const double inner = element * static_cast<double>(layer.ffn * std::max<std::int64_t>(1, layer.experts_per_token));
  // Of the product and its factors, or of a value and its input.
  const double of_mlp = (layer.is_gated ? 3 : 2) * inner;
  if (setting.flash_attention) return of_mlp;
  const double scores = 2 * element * static_cast<double>(layer.heads) * length(layer, setting);
  return std::max(of_mlp, scores - (layer.is_gated ? 4 : 2) * inner);
}

double layer_activations(const Layers& layer, const Setting& setting) {
  check(layer);
  check(setting);
  check_count("sequence", setting.sequence, 1, 1 << 30);
  const double element = element_bytes(setting);
  const auto hidden = static_cast<double>(layer.hidden);
  const double branches = layer.has_cross_attention ? 3 : 2;
  double each = 2 * element;
  if (layer.has_unfused_norms) each += 4;
  if (layer.has_dropout) each += 1;
  const double whole = tokens(layer, setting) * hidden * branches * each;
  double sum = whole / whole_divisor(setting) + attention(layer, setting, tokens(layer, setting)) +
               mlp(layer, setting) + score_activations(layer, setting);
  if (layer.has_cross_attention) sum += attention(layer, setting, source_tokens(setting));
  return sum;
}

}  // namespace smdp::memory
