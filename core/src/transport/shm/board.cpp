#include "transport/shm/board.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "smdp/error.h"

namespace smdp {

Board::Board(std::shared_ptr<Segment> segment, const Members& members, std::vector<int> eventfds)
    : segment_(std::move(segment)),
      members_(members),
      eventfds_(std::move(eventfds)),
      size_(members.local_ranks().size()),
      me_(members.local_index),
      met_(size_, 0) {}

void Board::enter(const Fingerprint& fingerprint) {
  mine_ = fingerprint;
  shaped_ = me_;
  RankFlags& flags = segment_->flags(me_);
  flags.fingerprints[fingerprint.sequence % kFingerprints] = fingerprint;
  flags.entered.store(fingerprint.sequence);
  ring_all();
}

void Board::compare_all() {
  for (std::size_t local = 0; local < size_ && !in_doubt_; ++local) {
    if (local != me_) has_met(local);
  }
}

void Board::give_up() {
  RankFlags& flags = segment_->flags(me_);
  // A peer may read these while this rank gives up the next operation, but not the one after that.
  std::copy(std::begin(next_round_), std::end(next_round_), flags.next_rounds[mine_.sequence % kFingerprints]);
  in_doubt_ = true;
  flags.given_up.store(mine_.sequence);
  ring_all();
}

void Board::agree_on_rounds() {
  RankFlags& flags = segment_->flags(me_);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t local = 0; local < size_; ++local) {
      const std::uint64_t theirs = segment_->flags(local).next_rounds[mine_.sequence % kFingerprints][lane];
      next_round_[lane] = std::max(next_round_[lane], theirs);
    }
    // Nobody reads what was published before: both slots are free.
    flags.produced[lane].store(next_round_[lane] - 1);
    flags.consumed[lane].store(next_round_[lane] - 1);
  }
  in_doubt_ = false;
  ring_all();
}

void Board::record(SlotUse use, double seconds, std::size_t chunks) {
  if (me_ != 0 || chunks == 0) return;
  const auto index = static_cast<std::size_t>(use);
  trials_[index].record(seconds / static_cast<double>(chunks));
  segment_->flags(0).streams_slots[index].store(trials_[index].way(), std::memory_order_relaxed);
}

void Board::publish(std::size_t lane, std::uint64_t round) {
  segment_->flags(me_).produced[lane].store(round);
  ring_all();
}

void Board::consume(std::size_t lane, std::uint64_t round) {
  segment_->flags(me_).consumed[lane].store(round);
  ring_all();
}

void Board::ring_all() {
  for (std::size_t local = 0; local < size_; ++local) {
    if (local != me_) ring_doorbell(segment_->flags(local).sleep, eventfds_[local]);
  }
}

bool Board::is_produced(std::size_t local, std::size_t lane, std::uint64_t round) {
  const bool is_there = segment_->flags(local).produced[lane].load() >= round;
  return has_met(local) && is_there;
}

bool Board::has_met(std::size_t local) {
  if (met_[local] == mine_.sequence) return true;
  RankFlags& flags = segment_->flags(local);
  if (flags.entered.load() < mine_.sequence) return false;
  const Fingerprint& theirs = flags.fingerprints[mine_.sequence % kFingerprints];
  if (!mine_.matches(theirs)) {
    throw MismatchError(describe_mismatch(members_.tag(), mine_, members_.who(rank_of(local)), theirs));
  }
  check_shapes(local, theirs);
  met_[local] = mine_.sequence;
  return true;
}

// A rank that knows no shape fits all others; they must fit each other, for all ranks to hear of a mismatch.
void Board::check_shapes(std::size_t local, const Fingerprint& theirs) {
  if (mine_.shape != 0 || theirs.shape == 0) return;
  if (shaped_ == me_) shaped_ = local;
  const Fingerprint& first = segment_->flags(shaped_).fingerprints[mine_.sequence % kFingerprints];
  if (first.matches(theirs)) return;
  throw MismatchError(describe_mismatch(members_.prefix() + members_.who(rank_of(shaped_)), first,
                                        members_.who(rank_of(local)), theirs));
}

}  // namespace smdp
