// Looks at a group again while it trains, so that what disturbed the look at registration does not stay for the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cost/fusion_cost.h"
#include "smdp/group.h"

namespace smdp {

// The least seconds that samples have taken.
struct Sampled {
  double small;  // of one float
  double large;
  double sum;  // of arrays as large, by this rank
};

// What samples are to those of registration, in thousandths: 1000 is as long.
struct Shortened {
  std::uint32_t latency;
  std::uint32_t transfer;  // of what the bytes take beyond the latency
  std::uint32_t sum;
};

// Nothing where none is clearly shorter.
std::optional<Shortened> shortened(const Sampled& before, const Sampled& now);

// The figures of registration had it seen the shorter times.
cost::Measured corrected(cost::Measured measured, const Shortened& by);

class SecondLook {
 public:
  // Collective: takes the first samples, while nothing else runs. measured: at registration, to compare with.
  SecondLook(Group& group, const cost::Measured& measured);

  // After steps 4, 8, 16 and so on.
  static bool is_due(std::uint64_t step) { return step >= 4 && (step & (step - 1)) == 0; }

  // Sums, which takes about a millisecond, and queues samples behind the group's operations. All ranks call it at the
  // same place among those.
  void begin(Group& group);
  // The last sample; null where there is none to wait for.
  const Group::Handle& last() const { return last_; }
  // Takes the figures of samples that have ended.
  void end();

  // Once for each time that the figures have become clearly shorter.
  std::optional<Shortened> news();

 private:
  std::size_t floats_;  // of a long sample, as at registration
  std::vector<float> data_;
  double sum_ = 0;
  std::vector<Group::Handle> small_;
  std::vector<Group::Handle> large_;
  Group::Handle last_;
  std::optional<Sampled> known_;  // what the others know
  std::optional<Sampled> least_;
};

}  // namespace smdp
