// What an all_reduce and a sum take, found so that what disturbs the look does not stay for the whole job.
#pragma once

#include <cstddef>

#include "cost/fusion_cost.h"

namespace smdp {

// What is timed; a group, but in tests.
class Probe {
 public:
  virtual ~Probe() = default;

  // Seconds of an all_reduce of so many floats, by at most so many connections to each peer. Collective.
  virtual double all_reduce(std::size_t floats, std::size_t streams) = 0;

  // Seconds in which this rank sums two arrays of so many floats.
  virtual double sum(std::size_t floats) = 0;

  // Rank 0's value, on all ranks. Collective.
  virtual bool agreed(bool mine) = 0;
};

// Collective. Each figure is of the least of several samples, for a busy machine only makes them longer. Samples of all
// figures alternate: a busy moment hits a few of each, and not all of one. There are more as long as the least of a
// figure has not been seen twice. Well under 200 ms, but on slow or long links, where it tries least.
//
// tries_streams: the group has several connections to each peer, of which one may do.
cost::Measured calibrate(Probe& probe, bool tries_streams);

}  // namespace smdp
