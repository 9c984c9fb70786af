// Repeats the measurement of a group during training, so that a disturbance at registration does not last for the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cost/fusion_cost.h"
#include "smdp/group.h"

namespace smdp {

// The shortest times of samples, in seconds.
struct Sampled {
  double small;  // of one float
  double large;
  double sum;  // of arrays of the large size, by this rank
};

// Ratio of the samples to those of registration, in thousandths: 1000 means equally long.
struct Shortened {
  std::uint32_t latency;
  std::uint32_t transfer;  // of the bytes, beyond the latency
  std::uint32_t sum;
};

// Returns nothing if no time is clearly shorter.
std::optional<Shortened> shortened(const Sampled& before, const Sampled& now);

// Returns the figures that registration would have found with the shorter times.
cost::Measured corrected(cost::Measured measured, const Shortened& by);

class SecondLook {
 public:
  // Collective: takes the first samples, while nothing else runs. measured: at registration, for comparison.
  SecondLook(Group& group, const cost::Measured& measured);

  // Returns true after steps 4, 8, 16 and so on.
  static bool is_due(std::uint64_t step) { return step >= 4 && (step & (step - 1)) == 0; }

  // Measures sums, which takes about a millisecond, and queues samples behind the group's operations. All ranks must
  // call it at the same place among those.
  void begin(Group& group);
  // Returns the last sample; null if there is none to wait for.
  const Group::Handle& last() const { return last_; }
  // Reads the times of samples that have ended.
  void end();

  // Returns a value once each time the figures have become clearly shorter.
  std::optional<Shortened> news();

 private:
  std::size_t floats_;  // of a large sample, as at registration
  std::vector<float> data_;
  double sum_ = 0;
  std::vector<Group::Handle> small_;
  std::vector<Group::Handle> large_;
  Group::Handle last_;
  std::optional<Sampled> known_;  // what the other ranks know
  std::optional<Sampled> least_;
};

}  // namespace smdp
