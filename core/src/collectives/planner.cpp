#include "collectives/planner.h"

#include <utility>

#include "smdp/error.h"

namespace smdp {
namespace {

constexpr std::pair<const char*, Algorithm> kNames[] = {
    {"auto", Algorithm::kAuto},        {"one_shot", Algorithm::kOneShot},
    {"two_shot", Algorithm::kTwoShot}, {"direct", Algorithm::kDirect},
    {"ring", Algorithm::kRing},        {"recursive_doubling", Algorithm::kRecursiveDoubling},
    {"tree", Algorithm::kTree},
};

// One-shot reads W inputs per rank where two-shot reads 2 / W, but waits once instead of twice. Measured on 2 ranks,
// the curves cross between 32 and 64 KiB.
constexpr std::size_t kOneShotBytes = std::size_t{64} << 10;
// Latency beats bytes below this.
constexpr std::size_t kDoublingBytes = std::size_t{16} << 10;
// Over-sharding: below this many bytes per peer direct exchange wastes its time on headers and wake-ups.
constexpr std::size_t kShardFloor = std::size_t{64} << 10;
constexpr std::size_t kDirectHosts = 64;

}  // namespace

Algorithm parse_algorithm(const std::string& name) {
  std::string allowed;
  for (const auto& [text, algorithm] : kNames) {
    if (name == text) return algorithm;
    allowed += (allowed.empty() ? "" : ", ") + std::string(text);
  }
  throw ConfigError("[smdp] SMDP_ALGORITHM is '" + name + "'; allowed: " + allowed + ".");
}

const char* name_of(Algorithm algorithm) {
  for (const auto& [text, known] : kNames) {
    if (algorithm == known) return text;
  }
  return "auto";
}

Algorithm Planner::local_all_reduce(std::size_t bytes, std::size_t ranks, std::size_t slot_bytes) const {
  if (bytes > slot_bytes) return Algorithm::kTwoShot;
  if (forced == Algorithm::kOneShot || forced == Algorithm::kTwoShot) return forced;
  return bytes * (ranks - 1) <= kOneShotBytes ? Algorithm::kOneShot : Algorithm::kTwoShot;
}

Algorithm Planner::host_exchange(std::size_t bytes, std::size_t hosts) const {
  if (strict) return Algorithm::kDirect;
  if (forced == Algorithm::kDirect || forced == Algorithm::kRing || forced == Algorithm::kRecursiveDoubling)
    return forced;
  if (bytes <= kDoublingBytes) return Algorithm::kRecursiveDoubling;
  if (hosts > kDirectHosts && bytes / hosts < kShardFloor) return Algorithm::kRing;
  return Algorithm::kDirect;
}

}  // namespace smdp
