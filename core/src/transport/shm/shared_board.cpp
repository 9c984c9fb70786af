#include "transport/shm/shared_board.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "smdp/error.h"
#include "transport/shm/doorbell.h"

namespace smdp {

SharedBoard::SharedBoard(std::shared_ptr<Segment> segment, const Members& members, std::vector<Doorbell> doorbells)
    : Board(members, segment->slot_bytes()),
      segment_(std::move(segment)),
      doorbells_(std::move(doorbells)),
      met_(size(), 0) {}

void SharedBoard::enter(const Fingerprint& fingerprint) {
  mine_ = fingerprint;
  shaped_ = me();
  RankFlags& flags = segment_->flags(me());
  flags.fingerprints[fingerprint.sequence % kFingerprints] = fingerprint;
  flags.entered.store(fingerprint.sequence);
  ring_all();
}

void SharedBoard::compare_all() {
  for (std::size_t local = 0; local < size() && !in_doubt_; ++local) {
    if (local != me()) has_met(local);
  }
}

void SharedBoard::give_up() {
  RankFlags& flags = segment_->flags(me());
  // A peer may read these while this rank gives up the next operation, but not the one after that.
  std::copy(std::begin(next_round_), std::end(next_round_), flags.next_rounds[mine_.sequence % kFingerprints]);
  in_doubt_ = true;
  flags.given_up.store(mine_.sequence);
  ring_all();
}

void SharedBoard::agree_on_rounds() {
  RankFlags& flags = segment_->flags(me());
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t local = 0; local < size(); ++local) {
      const std::uint64_t theirs = segment_->flags(local).next_rounds[mine_.sequence % kFingerprints][lane];
      next_round_[lane] = std::max(next_round_[lane], theirs);
    }
    // What was published before is no longer read, so both slots are free.
    flags.produced[lane].store(next_round_[lane] - 1);
    flags.consumed[lane].store(next_round_[lane] - 1);
  }
  in_doubt_ = false;
  ring_all();
}

void SharedBoard::record(SlotUse use, double seconds, std::size_t chunks) {
  if (me() != 0 || chunks == 0) return;
  const auto index = static_cast<std::size_t>(use);
  trials_[index].record(seconds / static_cast<double>(chunks));
  segment_->flags(0).streams_slots[index].store(trials_[index].way(), std::memory_order_relaxed);
}

void SharedBoard::publish(std::size_t lane, std::uint64_t round) {
  segment_->flags(me()).produced[lane].store(round);
  ring_all();
}

void SharedBoard::consume(std::size_t lane, std::uint64_t round) {
  segment_->flags(me()).consumed[lane].store(round);
  ring_all();
}

void SharedBoard::arm(Sleeper sleeper) {
  segment_->flags(me()).sleep.store(sleeper == Sleeper::kCaller ? kInFutex : kInEpoll);
}

void SharedBoard::sleep(std::chrono::nanoseconds at_most) { futex_sleep(segment_->flags(me()).sleep, at_most); }

void SharedBoard::disarm() { segment_->flags(me()).sleep.store(kAwake); }

void SharedBoard::wake() { ring_doorbell(segment_->flags(me()).sleep, doorbells_[me()]->get()); }

void SharedBoard::ring_all() {
  for (std::size_t local = 0; local < size(); ++local) {
    if (local != me()) ring_doorbell(segment_->flags(local).sleep, doorbells_[local]->get());
  }
}

bool SharedBoard::is_produced(std::size_t local, std::size_t lane, std::uint64_t round) {
  const bool is_there = segment_->flags(local).produced[lane].load() >= round;
  return has_met(local) && is_there;
}

bool SharedBoard::is_writable(std::size_t local, std::size_t lane, std::uint64_t round) {
  if (segment_->flags(local).consumed[lane].load() + kSlots >= round) return true;
  has_met(local);
  return false;
}

bool SharedBoard::has_given_up(std::size_t local) const {
  return segment_->flags(local).given_up.load() >= mine_.sequence;
}

bool SharedBoard::has_met(std::size_t local) {
  if (met_[local] == mine_.sequence) return true;
  RankFlags& flags = segment_->flags(local);
  if (flags.entered.load() < mine_.sequence) return false;
  const Fingerprint& theirs = flags.fingerprints[mine_.sequence % kFingerprints];
  if (!mine_.matches(theirs)) {
    throw MismatchError(describe_mismatch(members().tag(), mine_, members().who(rank_of(local)), theirs));
  }
  check_shapes(local, theirs);
  met_[local] = mine_.sequence;
  return true;
}

// A rank without a shape matches all others. Those must match each other, so that all ranks detect a mismatch.
void SharedBoard::check_shapes(std::size_t local, const Fingerprint& theirs) {
  if (mine_.shape != 0 || theirs.shape == 0) return;
  if (shaped_ == me()) shaped_ = local;
  const Fingerprint& first = segment_->flags(shaped_).fingerprints[mine_.sequence % kFingerprints];
  if (first.matches(theirs)) return;
  throw MismatchError(describe_mismatch(members().prefix() + members().who(rank_of(shaped_)), first,
                                        members().who(rank_of(local)), theirs));
}

}  // namespace smdp
