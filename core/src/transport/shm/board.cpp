#include "transport/shm/board.h"

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
      verified_(size_, 0),
      mine_(kFingerprints) {}

bool Board::can_enter(std::uint64_t sequence, std::size_t& laggard) const {
  for (std::size_t local = 0; local < size_; ++local) {
    if (local != me_ && segment_->flags(local).entered.load() + 2 < sequence) {
      laggard = local;
      return false;
    }
  }
  return true;
}

void Board::enter(const Fingerprint& fingerprint) {
  sequence_ = fingerprint.sequence;
  RankFlags& flags = segment_->flags(me_);
  if (sequence_ > 2) {
    for (std::size_t local = 0; local < size_; ++local) {
      if (local != me_ && verified_[local] + 2 < sequence_) verify(local, sequence_ - 2);
    }
  }
  flags.fingerprints[sequence_ % kFingerprints] = fingerprint;
  mine_[sequence_ % kFingerprints] = fingerprint;
  flags.entered.store(sequence_);
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
  stalled_on(local);
  if (!is_there) return false;
  if (verified_[local] == sequence_) return true;
  // If it is still in an operation before, that took more rounds there than here.
  const std::uint64_t entered = segment_->flags(local).entered.load();
  if (entered < sequence_) verify(local, entered);
  return false;
}

// Compares fingerprints once the peer has entered this operation. Never true: it throws or goes on waiting.
bool Board::stalled_on(std::size_t local) {
  if (verified_[local] != sequence_ && segment_->flags(local).entered.load() >= sequence_) {
    // The operation before may have ended without a wait for this peer.
    if (verified_[local] + 1 < sequence_) verify(local, sequence_ - 1);
    verify(local, sequence_);
    verified_[local] = sequence_;
  }
  return false;
}

void Board::verify(std::size_t local, std::uint64_t sequence) const {
  const Fingerprint& theirs = segment_->flags(local).fingerprints[sequence % kFingerprints];
  const Fingerprint& own = mine_[sequence % kFingerprints];
  if (own.matches(theirs)) return;
  throw MismatchError(describe_mismatch(members_.tag(), own, members_.who(rank_of(local)), theirs));
}

}  // namespace smdp
