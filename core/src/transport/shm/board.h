// Collective exchange between the local ranks of a group, in rounds.
//
// In a round of a lane every rank may write into its own slot and publish it; others read it and mark the round
// consumed. A rank has two slots per lane, used by parity: it may write round r once all peers have consumed r - 2.
// All ranks go through the same rounds in the same order; a round in which a rank has nothing to publish still counts.
//
// Thread safety: one thread at a time per rank (whoever drives the group's operation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/task.h"
#include "transport/fingerprint.h"
#include "transport/members.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/segment.h"
#include "transport/shm/trials.h"

namespace smdp {

// Operations on messages that may exceed the caches.
enum class SlotUse : std::uint8_t { kBroadcast, kAllGather, kReduceScatter };

class Board {
 public:
  // eventfds: the doorbell of each local rank.
  Board(std::shared_ptr<Segment> segment, const Members& members, std::vector<int> eventfds);

  std::size_t size() const { return size_; }
  std::size_t me() const { return me_; }
  std::size_t slot_bytes() const { return segment_->slot_bytes(); }

  // An operation begins. Every operation ends with met() for all peers, so none is ever more than one away.
  void enter(const Fingerprint& fingerprint);

  // What it entered last.
  const Fingerprint& operation() const { return mine_; }

  // Throws MismatchError if a rank that has entered this operation called another one. Whoever waits for a peer asks:
  // the peer may have given up because of a third rank, and then what is awaited of it never comes.
  void compare_all();

  // The operation has failed with an error that every local rank finds by itself. Some ranks may have taken rounds that
  // others have not, so all of them must give it up before the next operation can enter: that one waits for gave_up()
  // of all peers, then calls agree_on_rounds().
  void give_up();
  bool is_in_doubt() const { return in_doubt_; }
  void agree_on_rounds();

  // First of `count` new rounds.
  std::uint64_t take_rounds(std::size_t lane, std::uint64_t count) {
    const std::uint64_t first = next_round_[lane];
    next_round_[lane] += count;
    return first;
  }

  std::byte* my_slot(std::size_t lane, std::uint64_t round) const { return segment_->slot(me_, lane, round); }
  // Another rank's slot; written to only where an algorithm says so (see two_shot.cpp).
  std::byte* slot(std::size_t local, std::size_t lane, std::uint64_t round) const {
    return segment_->slot(local, lane, round);
  }

  void publish(std::size_t lane, std::uint64_t round);
  void consume(std::size_t lane, std::uint64_t round);

  // How slots of such an operation are written: plainly, or past the caches. The first is faster between cores that
  // share a cache, the second up to three times between cores that do not, and what a system tells of that is often
  // wrong. So local rank 0 measures, and the others follow it; ranks that differ for one operation do no harm.
  bool streams_slots(SlotUse use) const {
    return segment_->flags(0).streams_slots[static_cast<std::size_t>(use)].load(std::memory_order_relaxed) != 0;
  }
  // seconds: from when all were there, for `chunks` slots of each rank that has as many.
  void record(SlotUse use, double seconds, std::size_t chunks);

  // Awaitables; they throw MismatchError. met: `local` has entered this operation, or the next, and called the same.
  // produced: it has published `round`. writable: it has read what round's slot held before.
  auto met(std::size_t local) {
    return until(rank_of(local), [this, local] { return has_met(local); });
  }
  auto produced(std::size_t local, std::size_t lane, std::uint64_t round) {
    return until(rank_of(local), [this, local, lane, round] { return is_produced(local, lane, round); });
  }
  auto writable(std::size_t local, std::size_t lane, std::uint64_t round) {
    return until(rank_of(local), [this, local, lane, round] {
      if (segment_->flags(local).consumed[lane].load() + 2 >= round) return true;
      has_met(local);
      return false;
    });
  }

  // `local` has given up the operation that this rank gave up last.
  auto gave_up(std::size_t local) {
    return until(rank_of(local), [this, local] { return segment_->flags(local).given_up.load() >= mine_.sequence; });
  }

  std::atomic<std::uint32_t>& my_sleep() const { return segment_->flags(me_).sleep; }
  int rank_of(std::size_t local) const { return members_.local_ranks()[local]; }

 private:
  bool is_produced(std::size_t local, std::size_t lane, std::uint64_t round);
  bool has_met(std::size_t local);
  void check_shapes(std::size_t local, const Fingerprint& theirs);
  void ring_all();

  std::shared_ptr<Segment> segment_;
  const Members& members_;
  std::vector<int> eventfds_;
  std::size_t size_;
  std::size_t me_;
  Fingerprint mine_;
  std::size_t shaped_ = 0;  // this rank knows no shape, but this local rank does; its own number: no rank so far
  bool in_doubt_ = false;   // mine_ was given up, and nothing has been agreed on since
  std::uint64_t next_round_[kLanes] = {1, 1};  // both slots are free at the start
  std::vector<std::uint64_t> met_;             // by local rank: last sequence compared
  Trials trials_[kSlotUses];                   // of local rank 0: the second way is past the caches
};

}  // namespace smdp
