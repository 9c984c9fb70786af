// Times of collectives by formula: the only model that chooses algorithms. It uses nominal figures, not measured ones:
// the choice determines the order of a sum, so it must be the same on every rank and in every run.
//
// S bytes, W ranks on a host, M hosts. Sources: the alpha-beta model (Hockney, 1994); the constants were fitted to
// `smdp bench` on 2 cores of a server CPU and to 10 Gbit/s Ethernet.
#pragma once

#include <cstddef>

namespace smdp::cost {

struct SharedMemory {
  double wait = 0.5e-6;          // s, for another rank's flag
  double fetch = 8e9;            // bytes/s, of lines written by another core, read once and replaced by it
  double fetch_in_place = 16e9;  // bytes/s, of lines summed in place and read back by their writer
};

struct Network {
  double hop = 30e-6;         // s, from a send until the peer wakes up
  double message = 3e-6;      // s, of CPU time per message
  double bandwidth = 1.19e9;  // bytes/s per direction
  double sum = 10e9;          // bytes/s, of a partial sum
};

// All return seconds.
double one_shot(double bytes, std::size_t ranks, const SharedMemory& memory = {});
double two_shot(double bytes, std::size_t ranks, const SharedMemory& memory = {});
double direct(double bytes, std::size_t hosts, const Network& network = {});
double ring(double bytes, std::size_t hosts, const Network& network = {});
double recursive_doubling(double bytes, std::size_t hosts, const Network& network = {});

}  // namespace smdp::cost
