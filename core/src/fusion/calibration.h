// Measures how long an all_reduce and a sum take, so that a disturbance during the measurement does not affect the
// whole job.
#pragma once

#include <cstddef>

#include "cost/fusion_cost.h"

namespace smdp {

// What is timed: a group, except in tests.
class Probe {
 public:
  virtual ~Probe() = default;

  // Returns the seconds of an all_reduce of this many floats over at most `streams` connections to each peer.
  // Collective.
  virtual double all_reduce(std::size_t floats, std::size_t streams) = 0;

  // Returns the seconds in which this rank sums two arrays of this many floats.
  virtual double sum(std::size_t floats) = 0;

  // Returns rank 0's value on all ranks. Collective.
  virtual bool agreed(bool mine) = 0;
};

// Collective. Each figure comes from the shortest of several samples, because a busy machine only makes them longer.
// Samples of all figures alternate, so that a busy moment affects a few of each and not all of one. Sampling continues
// until the shortest time of each figure has been seen twice. Takes well under 200 ms, except on slow or long links,
// where it samples the least.
//
// tries_streams: the group has several connections to each peer, and a single one may be enough.
cost::Measured calibrate(Probe& probe, bool tries_streams);

}  // namespace smdp
