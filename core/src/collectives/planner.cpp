#include "collectives/planner.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "collectives/chunks.h"
#include "common/counted.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/per_process.h"
#include "cost/collective_cost.h"
#include "smdp/error.h"

namespace smdp {
namespace {

constexpr std::pair<const char*, Algorithm> kNames[] = {
    {"auto", Algorithm::kAuto},        {"one_shot", Algorithm::kOneShot},
    {"two_shot", Algorithm::kTwoShot}, {"direct", Algorithm::kDirect},
    {"ring", Algorithm::kRing},        {"recursive_doubling", Algorithm::kRecursiveDoubling},
    {"tree", Algorithm::kTree},
};

// The choices that SMDP_LOG_LEVEL=debug has already printed.
struct Announced {
  Mutex mutex;
  std::set<std::string> texts SMDP_GUARDED_BY(mutex);
};

// Limits memory for a program whose sizes never repeat.
constexpr std::size_t kMostAnnounced = 10'000;

// Logs the choice once for each size.
Algorithm announced(Algorithm choice, std::size_t bytes, std::size_t parties, const char* what, const char* where) {
  if (!is_logged(LogLevel::kDebug)) return choice;
  const std::string text =
      what + std::to_string(bytes) + " bytes between " + std::to_string(parties) + " " + where + ": " + name_of(choice);
  auto& known = per_process<Announced>();
  const Lock lock(known.mutex);
  if (known.texts.size() == kMostAnnounced) known.texts.clear();
  if (known.texts.insert(text).second) log(LogLevel::kDebug, text);
  return choice;
}

// bytes: size of a lane.
Algorithm announced_exchange(Algorithm choice, std::size_t bytes, std::size_t hosts) {
  return announced(choice, bytes, hosts, "a rank's part of an all_reduce, ", "hosts");
}

// Describes equal chunks and shards.
std::string owned_text(std::size_t chunks, std::size_t bytes, std::size_t owners) {
  return counted(chunks, "chunk") + " of " + std::to_string(bytes / chunks) + " bytes, " + counted(owners, "owner") +
         " of " + std::to_string(bytes / chunks / owners) + " bytes in each";
}

// Describes a single all_reduce, before any measurement.
std::string cut_text(std::size_t bytes, Algorithm algorithm, std::size_t hosts, std::size_t lanes) {
  const cost::ExchangeSizes sizes;
  const Batch::Item item{nullptr, nullptr, bytes, {DType::kUint8, ReduceOp::kSum}};
  const std::size_t chunks = Chunks(item, algorithm, sizes, hosts, lanes).count();
  if (algorithm == Algorithm::kRecursiveDoubling) {
    return counted(chunks, "chunk") + " of " + std::to_string(bytes / chunks) + " bytes, each summed by every host";
  }
  const bool is_direct = algorithm == Algorithm::kDirect;
  const std::size_t owners =
      is_direct ? owners_of(Chunks(item, algorithm, sizes, hosts, lanes).at(0, 0), sizes, hosts, lanes, 1) : hosts;
  return owned_text(chunks, bytes, owners * lanes);
}

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
  const auto size = static_cast<double>(bytes);
  Algorithm choice = forced_;
  if (bytes > slot_bytes) {
    choice = Algorithm::kTwoShot;
  } else if (forced_ != Algorithm::kOneShot && forced_ != Algorithm::kTwoShot) {
    choice = cost::one_shot(size, ranks) <= cost::two_shot(size, ranks) ? Algorithm::kOneShot : Algorithm::kTwoShot;
  }
  return announced(choice, bytes, ranks, "all_reduce of ", "ranks of this host");
}

Algorithm Planner::host_exchange(std::size_t bytes, std::size_t hosts) const {
  return announced_exchange(best_exchange(bytes, hosts), bytes, hosts);
}

Algorithm Planner::batch_exchange(std::size_t bytes, std::size_t hosts) const {
  return announced_exchange(batch_choice(bytes, hosts), bytes, hosts);
}

Algorithm Planner::batch_choice(std::size_t bytes, std::size_t hosts) const {
  const Algorithm choice = best_exchange(bytes, hosts);
  return choice == Algorithm::kRing && forced_ != Algorithm::kRing ? Algorithm::kDirect : choice;
}

Algorithm Planner::best_exchange(std::size_t bytes, std::size_t hosts) const {
  if (strict_) return Algorithm::kDirect;
  if (forced_ == Algorithm::kDirect || forced_ == Algorithm::kRing || forced_ == Algorithm::kRecursiveDoubling) {
    return forced_;
  }
  const auto size = static_cast<double>(bytes);
  const double direct = cost::direct(size, hosts);
  const double doubling = cost::recursive_doubling(size, hosts);
  if (doubling < direct) return Algorithm::kRecursiveDoubling;
  return cost::ring(size, hosts) < direct ? Algorithm::kRing : Algorithm::kDirect;
}

std::string Planner::why_idle(std::size_t hosts) const {
  if (forced_ == Algorithm::kAuto) return "";
  const bool is_for_one = forced_ == Algorithm::kOneShot || forced_ == Algorithm::kTwoShot;
  const std::string what = std::string("SMDP_ALGORITHM=") + name_of(forced_) + " has no effect: ";
  if (hosts == 1 && !is_for_one) return what + "all ranks are on one host, where it can be one_shot or two_shot.";
  if (hosts > 1 && is_for_one) {
    return what + "ranks are on several hosts, where it can be direct, ring, recursive_doubling or tree.";
  }
  if (hosts > 1 && strict_ && forced_ != Algorithm::kDirect)
    return what + "SMDP_DETERMINISTIC=strict always uses direct.";
  return "";
}

std::string Planner::reason(std::size_t hosts) const {
  std::string text;
  if (hosts > 1 && strict_) text = "; SMDP_DETERMINISTIC=strict always uses direct";
  if (forced_ == Algorithm::kAuto) return text;
  return text + "; SMDP_ALGORITHM=" + name_of(forced_) + (why_idle(hosts).empty() ? "" : " has no effect");
}

std::string Planner::explain(std::size_t bytes, std::size_t hosts, std::size_t ranks, std::size_t slot_bytes,
                             std::size_t streams) const {
  const auto microseconds = [](double seconds) { return std::to_string(std::lround(seconds * 1e6)) + " us"; };
  const std::string what = "all_reduce of " + std::to_string(bytes) + " bytes ";
  const std::string by = reason(hosts);
  const auto size = static_cast<double>(bytes);
  if (hosts == 1) {
    const Algorithm choice = local_all_reduce(bytes, ranks, slot_bytes);
    const std::size_t chunks = std::max<std::size_t>(1, (bytes + slot_bytes - 1) / slot_bytes);
    return what + "between " + counted(ranks, "rank") + " of one host: " + name_of(choice) + " (cost model: one_shot " +
           microseconds(cost::one_shot(size, ranks)) + ", two_shot " + microseconds(cost::two_shot(size, ranks)) +
           "; one_shot up to " + std::to_string(slot_bytes) + " bytes" + by + "), in " +
           (choice == Algorithm::kOneShot ? "1 chunk, summed by every rank" : owned_text(chunks, bytes, ranks));
  }
  const Algorithm choice = best_exchange(bytes / ranks, hosts);
  const double lane = size / static_cast<double>(ranks);
  return what + "between " + std::to_string(hosts) + " hosts of " + counted(ranks, "rank") +
         ": summed inside each host, then each rank's part between hosts by " +
         (takes_tree() ? "tree" : name_of(choice)) + " (cost model: direct " + microseconds(cost::direct(lane, hosts)) +
         ", ring " + microseconds(cost::ring(lane, hosts)) + ", recursive_doubling " +
         microseconds(cost::recursive_doubling(lane, hosts)) + by + "), " +
         (takes_tree() ? "to rank 0 and back" : "in " + cut_text(bytes, choice, hosts, ranks)) + ", over " +
         counted(streams, "connection") + " to each rank";
}

}  // namespace smdp
