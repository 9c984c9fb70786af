// Which algorithm runs: a fixed function of operation, bytes, layout and SMDP_ALGORITHM, equal on all ranks, so that
// the order of a sum never depends on a measurement.
#pragma once

#include <cstddef>
#include <string>

namespace smdp {

enum class Algorithm { kAuto, kOneShot, kTwoShot, kDirect, kRing, kRecursiveDoubling, kTree };

// From SMDP_ALGORITHM; throws ConfigError listing the allowed names.
Algorithm parse_algorithm(const std::string& name);
const char* name_of(Algorithm algorithm);

class Planner {
 public:
  // strict: SMDP_DETERMINISTIC=strict, only algorithms that add in rank order.
  explicit Planner(Algorithm forced = Algorithm::kAuto, bool strict = false) : forced_(forced), strict_(strict) {}

  // In shared memory: kOneShot or kTwoShot.
  Algorithm local_all_reduce(std::size_t bytes, std::size_t ranks, std::size_t slot_bytes) const;

  // Across hosts: kDirect, kRing or kRecursiveDoubling. bytes: of one lane.
  Algorithm host_exchange(std::size_t bytes, std::size_t hosts) const;

  // The same for all items of a batch, whose ends a measurement may have set: no ring, unless SMDP_ALGORITHM says so,
  // for there the order of a sum depends on where its element lies. bytes: of one lane of all items.
  Algorithm batch_exchange(std::size_t bytes, std::size_t hosts) const;

  // As batch_exchange(), without a word in the log.
  Algorithm batch_choice(std::size_t bytes, std::size_t hosts) const;

  // An all_reduce of one tensor between hosts is a reduce and a broadcast. Only where SMDP_ALGORITHM says so.
  bool takes_tree() const { return forced_ == Algorithm::kTree && !strict_; }

  // Why SMDP_ALGORITHM decides nothing in a group on so many hosts; empty if it does, or is not set.
  std::string why_idle(std::size_t hosts) const;
  // What variables have to do with the choice, for explain().
  std::string reason(std::size_t hosts) const;

  // The choice for an all_reduce between `hosts` of `ranks` each, with the cost of every algorithm, and how it is cut:
  // chunks, owners, streams (connections to a rank on another host).
  std::string explain(std::size_t bytes, std::size_t hosts, std::size_t ranks, std::size_t slot_bytes,
                      std::size_t streams) const;

 private:
  Algorithm best_exchange(std::size_t bytes, std::size_t hosts) const;

  Algorithm forced_;
  bool strict_;
};

}  // namespace smdp
