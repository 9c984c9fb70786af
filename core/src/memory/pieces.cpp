#include "memory/pieces.h"

#include <vector>

#include "common/argument.h"
#include "memory/activations.h"
#include "memory/logits.h"
#include "memory/parameters.h"

namespace smdp::memory {
namespace {

Piece embedding(const Layers& next, double parameters, bool has_dropout, const Setting& setting) {
  Piece piece;
  piece.parameters = parameters;
  // The dropout's mask; the embedded rows are the next layer's input.
  if (has_dropout) {
    piece.embedding = tokens(next, setting) * static_cast<double>(next.hidden) / whole_divisor(setting);
  }
  return piece;
}

void check_tensor(const Layers& layer, std::int64_t tensor) {
  if (layer.heads % tensor != 0) {
    refuse("tensor", std::to_string(tensor), "a divisor of the " + std::to_string(layer.heads) + " heads");
  }
  if (tensor > layer.key_value_heads ? tensor % layer.key_value_heads != 0 : layer.key_value_heads % tensor != 0) {
    refuse("tensor", std::to_string(tensor),
           "a divisor or a multiple of the " + std::to_string(layer.key_value_heads) + " key-value heads");
  }
}

}  // namespace

Pieces pieces_of(const Architecture& architecture, const Setting& setting) {
  const std::int64_t tensor = setting.tensor;
  const auto ranks = static_cast<double>(tensor);
  Pieces pieces;
  std::vector<std::size_t> sharing;
  const auto table = static_cast<double>(architecture.vocabulary) * static_cast<double>(architecture.hidden) / ranks;

  sharing.push_back(0);
  pieces.list.push_back(embedding(architecture.layers.front(), embedding_parameters(architecture).local(tensor),
                                  architecture.has_embedding_dropout, setting));
  bool has_decoder = false;
  for (const Layers& run : architecture.layers) {
    check_tensor(run, tensor);
    if (run.has_cross_attention && !has_decoder && has_decoder_embedding(architecture)) {
      sharing.push_back(pieces.list.size());
      pieces.list.push_back(embedding(run, table, architecture.has_embedding_dropout, setting));
    }
    has_decoder = has_decoder || run.has_cross_attention;
    Piece piece;
    piece.parameters = layer_parameters(run, tensor).local(tensor);
    piece.activations = layer_activations(run, setting);
    piece.rebuilt = score_activations(run, setting);
    piece.gradients = gradient_activations(run, setting);
    piece.input =
        tokens(run, setting) * static_cast<double>(run.hidden) * element_bytes(setting) / whole_divisor(setting);
    piece.is_layer = true;
    pieces.layers += static_cast<double>(run.count);
    pieces.list.insert(pieces.list.end(), static_cast<std::size_t>(run.count), piece);
  }
  const LogitBytes logits = logit_bytes(architecture, setting);
  Piece head;
  head.parameters = head_parameters(architecture).local(tensor);
  if (architecture.is_tied) {
    sharing.push_back(pieces.list.size());
    head.parameters += output_matrix(architecture) / ranks;
  }
  head.logits = logits.kept;
  head.logits_extra = logits.extra;
  pieces.list.push_back(head);
  if (sharing.size() > 1) pieces.tied.push_back({table, sharing});
  return pieces;
}

Pieces pieces_of(const Trace& trace, const Setting& setting) {
  if (setting.tensor != 1)
    refuse("tensor", std::to_string(setting.tensor), "1, with a trace, which has no matrices to divide");
  if (trace.units.empty()) refuse("units", "[]", "at least one unit");
  check_count("the trace's microbatch_size", trace.microbatch_size, 1, 1 << 30);
  const double scale = static_cast<double>(setting.microbatch_size) / static_cast<double>(trace.microbatch_size);
  Pieces pieces;
  double input = 0;
  for (std::size_t i = 0; i < trace.units.size(); ++i) {
    const Unit& unit = trace.units[i];
    const std::string name = "units[" + std::to_string(i) + "].";
    check_amount(name + "parameters", unit.parameters);
    check_amount(name + "activations", unit.activations);
    check_amount(name + "cut", unit.cut);
    Piece piece;
    piece.parameters = unit.parameters;
    piece.activations = unit.activations * scale;
    piece.input = input * scale;
    piece.is_layer = true;
    pieces.list.push_back(piece);
    input = unit.cut;
  }
  pieces.layers = static_cast<double>(trace.units.size());
  std::vector<double> shared(trace.units.size());
  for (const Tied& group : trace.tied) {
    check_amount("tied.parameters", group.parameters);
    for (const std::size_t unit : group.units) {
      if (unit >= trace.units.size()) {
        refuse("tied.units", std::to_string(unit), "the index of a unit, below " + std::to_string(trace.units.size()));
      }
      shared[unit] += group.parameters;
      if (shared[unit] > trace.units[unit].parameters) {
        refuse("tied.parameters", std::to_string(group.parameters),
               "at most the parameters of unit " + std::to_string(unit));
      }
    }
  }
  pieces.tied = trace.tied;
  return pieces;
}

}  // namespace smdp::memory
