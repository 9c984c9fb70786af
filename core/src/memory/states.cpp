// Bytes of parameters, gradients and optimizer states, one row per precision.
#include <array>

#include "common/argument.h"
#include "smdp/memory.h"

namespace smdp::memory {
namespace {

struct Precision {
  const char* name;
  double parameters;
  double gradients;
  double optimizer;  // sharded from zero1 on
  double copy;       // fp32 copy of gradients during the step, if none is kept
  double wire;       // of gradients, which are sent once even if they are kept twice
};

// Adam: two moments of 4 bytes each; master weights take 4 more. The rows are those of the ZeRO paper, of AWS's
// documentation and of Megatron's distributed optimizer, whose fp16 keeps a second, fp32 gradient with the optimizer's
// shard.
constexpr std::array<Precision, 6> kPrecisions{{
    {"fp32", 4, 4, 8, 0, 4},
    {"fp16", 2, 2, 12, 4, 2},
    {"bf16", 2, 2, 12, 4, 2},
    {"amp", 6, 6, 8, 0, 4},
    {"megatron_bf16", 2, 4, 12, 0, 4},
    {"megatron_fp16", 2, 2, 16, 0, 2},
}};

const Precision& find(const std::string& name) {
  std::string known;
  for (const Precision& precision : kPrecisions) {
    if (name == precision.name) return precision;
    known += (known.empty() ? "" : ", ") + std::string(precision.name);
  }
  refuse("precision", "'" + name + "'", known);
}

}  // namespace

StateBytes state_bytes(const std::string& precision, const std::string& sharding, std::int64_t degree) {
  const Precision& row = find(precision);
  check_count("sharding_degree", degree, 1);
  int level = 0;
  for (const char* name : {"none", "zero1", "zero2", "zero3"}) {
    if (sharding == name) break;
    ++level;
  }
  if (level == 4) refuse("sharding", "'" + sharding + "'", "none, zero1, zero2, zero3");
  const auto ranks = static_cast<double>(degree);
  const double optimizer = level >= 1 ? ranks : 1;
  return {row.parameters / (level >= 3 ? ranks : 1), row.gradients / (level >= 2 ? ranks : 1),
          row.optimizer / optimizer, row.copy / optimizer, row.wire};
}

}  // namespace smdp::memory
