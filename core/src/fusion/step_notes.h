// What all ranks must know about a step: a byte per gradient that some rank used, numbers from each rank and, in the
// first step, rank 0's order. Each entry has its own place, which is zero on all other ranks, so the maximum gathers
// them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "smdp/group.h"

namespace smdp {

class StepNotes {
 public:
  // Numbers that each rank tells all others.
  enum Told : std::size_t {
    kComputeTime,  // microseconds
    // 1 + fusion buffers whose sums were there when backward ended; 0 if there is no wait for single gradients.
    kOverInTime,
    // Rank 0: what SecondLook has found, in thousandths; 0: nothing new.
    kShorterLatency,
    kShorterTransfer,
    kShorterSum,
    kToldCount
  };

  static std::size_t size_of_told(std::size_t ranks) { return sizeof(std::uint32_t) * kToldCount * ranks; }

  void reset(std::size_t gradients, std::size_t ranks, bool has_order) {
    gradients_ = gradients;
    ranks_ = ranks;
    bytes_.assign(gradients + size_of_told(ranks) + (has_order ? sizeof(std::uint32_t) * gradients : 0), 0);
  }

  std::uint8_t* data() { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

  void put_used(std::size_t index) { bytes_[index] = 1; }
  // False before the first step.
  bool is_used(std::size_t index) const { return !bytes_.empty() && bytes_[index] != 0; }

  void put(Told what, std::size_t rank, std::uint32_t number) {
    std::memcpy(place_of(what, rank), &number, sizeof number);
  }
  // By rank.
  std::vector<std::uint32_t> told(Told what) const { return numbers(place_of(what, 0), ranks_); }

  // Stores gradients in the order of their arrival, followed by the missing ones in reverse.
  void put_order(const std::vector<std::size_t>& seen) {
    std::vector<std::uint32_t> order(seen.begin(), seen.end());
    std::vector<bool> is_seen(gradients_);
    for (const std::size_t index : seen) is_seen[index] = true;
    for (std::size_t index = gradients_; index-- > 0;) {
      if (!is_seen[index]) order.push_back(static_cast<std::uint32_t>(index));
    }
    std::memcpy(place_of(kToldCount, 0), order.data(), order.size() * sizeof(std::uint32_t));
  }
  // Valid for a step that has one.
  std::vector<std::uint32_t> order() const { return numbers(place_of(kToldCount, 0), gradients_); }

 private:
  std::size_t offset_of(Told what, std::size_t rank) const {
    return gradients_ + sizeof(std::uint32_t) * (ranks_ * what + rank);
  }
  std::uint8_t* place_of(Told what, std::size_t rank) { return bytes_.data() + offset_of(what, rank); }
  const std::uint8_t* place_of(Told what, std::size_t rank) const { return bytes_.data() + offset_of(what, rank); }

  static std::vector<std::uint32_t> numbers(const std::uint8_t* from, std::size_t count) {
    std::vector<std::uint32_t> all(count);
    if (count != 0) std::memcpy(all.data(), from, count * sizeof(std::uint32_t));
    return all;
  }

  std::size_t gradients_ = 0;
  std::size_t ranks_ = 0;
  std::vector<std::uint8_t> bytes_;
};

// Returns what each rank of the world computed, if it is in the group.
inline std::vector<double> compute_seconds(const StepNotes& notes, const Group& group) {
  const std::vector<std::uint32_t> microseconds = notes.told(StepNotes::kComputeTime);
  std::vector<double> all;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto place = static_cast<std::size_t>(group.world_rank(rank));
    all.resize(std::max(all.size(), place + 1));
    all[place] = 1e-6 * microseconds[static_cast<std::size_t>(rank)];
  }
  return all;
}

}  // namespace smdp
