// Exchange between local ranks in the memory that they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/shm/peer_doorbells.h"
#include "transport/shm/segment.h"
#include "transport/shm/trials.h"
#include "transport/transport.h"

namespace smdp {

class SharedBoard final : public Board {
 public:
  // doorbells: by local rank, including this rank's.
  SharedBoard(std::shared_ptr<Segment> segment, const Members& members, std::vector<Doorbell> doorbells);

  void enter(const Fingerprint& fingerprint) override;
  const Fingerprint& operation() const override { return mine_; }
  void compare_all() override;
  void give_up() override;
  bool is_in_doubt() const override { return in_doubt_; }
  void agree_on_rounds() override;

  std::uint64_t take_rounds(std::size_t lane, std::uint64_t count) override {
    const std::uint64_t first = next_round_[lane];
    next_round_[lane] += count;
    return first;
  }
  std::byte* slot(std::size_t local, std::size_t lane, std::uint64_t round) const override {
    return segment_->slot(local, lane, round);
  }
  void publish(std::size_t lane, std::uint64_t round) override;
  void consume(std::size_t lane, std::uint64_t round) override;
  bool streams_slots(SlotUse use) const override {
    return segment_->flags(0).streams_slots[static_cast<std::size_t>(use)].load(std::memory_order_relaxed) != 0;
  }
  void record(SlotUse use, double seconds, std::size_t chunks) override;

  bool has_met(std::size_t local) override;
  bool is_produced(std::size_t local, std::size_t lane, std::uint64_t round) override;
  bool is_writable(std::size_t local, std::size_t lane, std::uint64_t round) override;
  bool has_given_up(std::size_t local) const override;

  void arm(Sleeper sleeper) override;
  void sleep(std::chrono::nanoseconds at_most) override;
  void disarm() override;
  void wake() override;

 private:
  void check_shapes(std::size_t local, const Fingerprint& theirs);
  void ring_all();

  std::shared_ptr<Segment> segment_;
  std::vector<Doorbell> doorbells_;
  Fingerprint mine_;
  std::size_t shaped_ = 0;  // this rank has no shape, but this local rank does; own number: none so far
  bool in_doubt_ = false;   // mine_ was given up, and no agreement has followed
  std::uint64_t next_round_[kLanes] = {1, 1};  // both slots are free at the start
  std::vector<std::uint64_t> met_;             // by local rank: last sequence compared
  Trials trials_[kSlotUses];                   // of local rank 0: way 1 streams past the caches
};

}  // namespace smdp
