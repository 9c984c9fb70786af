// Decides which algorithm runs: a fixed function of operation, bytes, layout and SMDP_ALGORITHM, which is equal on all
// ranks, so that the order of a sum never depends on a measurement.
#pragma once

#include <cstddef>
#include <string>

namespace smdp {

enum class Algorithm { kAuto, kOneShot, kTwoShot, kDirect, kRing, kRecursiveDoubling, kTree };

// Parses SMDP_ALGORITHM. Throws ConfigError, which lists the valid names.
Algorithm parse_algorithm(const std::string& name);
const char* name_of(Algorithm algorithm);

class Planner {
 public:
  // strict: SMDP_DETERMINISTIC=strict; only algorithms that add in rank order.
  explicit Planner(Algorithm forced = Algorithm::kAuto, bool strict = false) : forced_(forced), strict_(strict) {}

  // In shared memory: returns kOneShot or kTwoShot.
  Algorithm local_all_reduce(std::size_t bytes, std::size_t ranks, std::size_t slot_bytes) const;

  // Across hosts: returns kDirect, kRing or kRecursiveDoubling. bytes: size of one lane.
  Algorithm host_exchange(std::size_t bytes, std::size_t hosts) const;

  // The same for all items of a batch, whose ends may depend on a measurement. Uses the ring only if SMDP_ALGORITHM
  // says so, because the ring's order of addition depends on an element's position. bytes: size of one lane of all
  // items.
  Algorithm batch_exchange(std::size_t bytes, std::size_t hosts) const;

  // Like batch_exchange(), but without logging.
  Algorithm batch_choice(std::size_t bytes, std::size_t hosts) const;

  // Returns whether an all_reduce of one tensor between hosts is a reduce and a broadcast, which only SMDP_ALGORITHM
  // selects.
  bool takes_tree() const { return forced_ == Algorithm::kTree && !strict_; }

  // Returns why SMDP_ALGORITHM has no effect in a group on this many hosts; empty if it has one or is not set.
  std::string why_idle(std::size_t hosts) const;
  // Returns how environment variables affect the choice, for explain().
  std::string reason(std::size_t hosts) const;

  // Describes the choice for an all_reduce between `hosts` hosts of `ranks` ranks each: the cost of every algorithm,
  // and how the data is cut into chunks, owners and streams (connections to a rank on another host).
  std::string explain(std::size_t bytes, std::size_t hosts, std::size_t ranks, std::size_t slot_bytes,
                      std::size_t streams) const;

 private:
  Algorithm best_exchange(std::size_t bytes, std::size_t hosts) const;

  Algorithm forced_;
  bool strict_;
};

}  // namespace smdp
