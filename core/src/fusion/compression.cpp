// Names of the compressions.
#include <string>
#include <utility>

#include "smdp/error.h"
#include "smdp/gradient_reducer.h"

namespace smdp {
namespace {

constexpr std::pair<const char*, Compression> kNames[] = {{"none", Compression::kNone},
                                                          {"fp16", Compression::kFloat16},
                                                          {"bf16", Compression::kBfloat16},
                                                          {"int8", Compression::kInt8},
                                                          {"topk", Compression::kTopK}};

}  // namespace

Compression parse_compression(const std::string& name) {
  std::string allowed;
  for (const auto& [text, compression] : kNames) {
    if (name == text) return compression;
    allowed += (allowed.empty() ? "" : ", ") + std::string(text);
  }
  throw InvalidArgument("[smdp] compression is '" + name + "'; allowed: " + allowed + ".");
}

const char* name_of(Compression compression) {
  for (const auto& [text, known] : kNames) {
    if (compression == known) return text;
  }
  return "none";
}

}  // namespace smdp
