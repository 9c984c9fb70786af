// Moves bytes between the ranks of a group: in rounds of exchange inside a host, and peer to peer.
//
// Collectives and the mailbox use only these interfaces. shm/ and tcp/ implement them, and tests inject faults around
// both. A call moves a chunk or a message, never a single element.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "common/task.h"
#include "transport/byte_stream.h"
#include "transport/fingerprint.h"
#include "transport/members.h"

namespace smdp {

inline constexpr std::size_t kLanes = 2;
inline constexpr std::size_t kSlots = 2;  // per rank and lane

// Operations on messages that may exceed the caches.
enum class SlotUse : std::uint8_t { kBroadcast, kAllGather, kReduceScatter };
inline constexpr std::size_t kSlotUses = 3;

// The thread of a rank that sleeps while it waits for other ranks: the caller of the operation or the progress thread.
enum class Sleeper : std::uint8_t { kCaller, kProgress };

// Collective exchange between the local ranks of a group, in rounds.
//
// In a round of a lane every rank may write into its own slot and publish it; the others read it and mark the round as
// consumed. A rank has two slots per lane, used alternately: it may write round r once all peers have consumed round r
// - 2. All ranks go through the same rounds in the same order; a round in which a rank has nothing to publish also
// counts.
//
// Thread safety: one thread at a time per rank (the one that drives the group's operation), except wake().
class Board {
 public:
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  virtual ~Board() = default;

  std::size_t size() const { return size_; }
  std::size_t me() const { return me_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  int rank_of(std::size_t local) const { return members_.local_ranks()[local]; }

  // Begins an operation. Every operation ends with met() for all peers, so no rank is more than one operation ahead.
  virtual void enter(const Fingerprint& fingerprint) = 0;

  // Returns what this rank entered last.
  virtual const Fingerprint& operation() const = 0;

  // Throws MismatchError if a rank that has entered this operation called a different one. Called while waiting for a
  // peer, because the peer may have given up because of a third rank, and then its part never comes.
  virtual void compare_all() = 0;

  // Called after an error that every local rank detects by itself. Some ranks may have taken rounds that others have
  // not, so all must give up the operation before the next one can enter: it waits for gave_up() of all peers and then
  // calls agree_on_rounds().
  virtual void give_up() = 0;
  virtual bool is_in_doubt() const = 0;
  virtual void agree_on_rounds() = 0;

  // Returns the first of `count` new rounds.
  virtual std::uint64_t take_rounds(std::size_t lane, std::uint64_t count) = 0;

  // Algorithms that write to another rank's slot say so (see two_shot.cpp).
  virtual std::byte* slot(std::size_t local, std::size_t lane, std::uint64_t round) const = 0;
  std::byte* my_slot(std::size_t lane, std::uint64_t round) const { return slot(me_, lane, round); }

  virtual void publish(std::size_t lane, std::uint64_t round) = 0;
  virtual void consume(std::size_t lane, std::uint64_t round) = 0;

  // Returns how slots are written in such an operation: false: normally; true: streamed past the caches. The former is
  // faster between cores that share a cache, the latter up to three times faster between cores that do not, and what a
  // system reports about caches is often wrong. Local rank 0 therefore measures, and the others follow; it does no harm
  // if ranks differ for one operation.
  virtual bool streams_slots(SlotUse use) const = 0;
  // seconds: time since all ranks were there, for `chunks` slots of each rank that has as many.
  virtual void record(SlotUse use, double seconds, std::size_t chunks) = 0;

  // Awaitables; they throw MismatchError. met: `local` has entered this operation or the next one, and called the same.
  // produced: it has published `round`. writable: it has consumed the previous content of the round's slot. gave_up: it
  // has given up the operation that this rank gave up last.
  auto met(std::size_t local) {
    return until(rank_of(local), [this, local] { return has_met(local); });
  }
  auto produced(std::size_t local, std::size_t lane, std::uint64_t round) {
    return until(rank_of(local), [this, local, lane, round] { return is_produced(local, lane, round); });
  }
  auto writable(std::size_t local, std::size_t lane, std::uint64_t round) {
    return until(rank_of(local), [this, local, lane, round] { return is_writable(local, lane, round); });
  }
  auto gave_up(std::size_t local) {
    return until(rank_of(local), [this, local] { return has_given_up(local); });
  }

  // The conditions of these awaitables, polled.
  virtual bool has_met(std::size_t local) = 0;
  virtual bool is_produced(std::size_t local, std::size_t lane, std::uint64_t round) = 0;
  virtual bool is_writable(std::size_t local, std::size_t lane, std::uint64_t round) = 0;
  virtual bool has_given_up(std::size_t local) const = 0;

  // Called by the driving thread before it sleeps. Later actions of local ranks wake it; it must check once more first.
  virtual void arm(Sleeper sleeper) = 0;
  // Makes a caller sleep, unless it has been woken since arm().
  virtual void sleep(std::chrono::nanoseconds at_most) = 0;
  virtual void disarm() = 0;
  // Any thread of this process: wakes the driving thread.
  virtual void wake() = 0;

 protected:
  Board(const Members& members, std::size_t slot_bytes)
      : members_(members), size_(members.local_ranks().size()), me_(members.local_index), slot_bytes_(slot_bytes) {}

  const Members& members() const { return members_; }

 private:
  const Members& members_;
  std::size_t size_;
  std::size_t me_;
  std::size_t slot_bytes_;
};

// Messages of collectives between this rank and one rank on another host. Both ranks number the messages of a direction
// in the same order; a message without a posted buffer may hold up those behind it.
//
// Thread safety: progress thread only.
class Link {
 public:
  // Messages still in flight, counted down as they end. Belongs to the coroutine that waits for them.
  using Pending = std::size_t;

  struct Handlers {
    // A connection ended or failed, with the reason.
    std::function<void(int peer, const std::string& reason)> on_broken;
    // The peer's data for the collective with this sequence number does not match (MismatchError).
    std::function<void(std::uint64_t sequence, std::exception_ptr error)> on_mismatch;
    // This process ran out of a resource (ShortageError).
    std::function<void(std::exception_ptr error)> on_error;
  };

  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  // Sets the running collective: messages with the same sequence number must carry the same fingerprint.
  virtual void enter(const Fingerprint& fingerprint) = 0;

  // Buffers must stay valid until `pending` has been counted down or reset() was called. streams: number of connections
  // to use.
  virtual void send(std::uint64_t slot, const std::byte* data, std::size_t size, Pending& pending,
                    std::size_t streams) = 0;
  virtual void receive(std::uint64_t slot, std::byte* data, std::size_t size, Pending& pending) = 0;

  // The collective has failed on all ranks: its buffers are not accessed any more, not even for reading. Data that
  // still arrives for it is discarded.
  virtual void drop(std::uint64_t sequence) = 0;

  // Forgets everything in flight and closes the connections. No buffer is accessed afterwards.
  virtual void reset() = 0;

  // Forgets everything in flight as soon as an operation has failed, because its buffers may have been freed. The
  // connections stay open until reset(), so that the peer is told the reason before it sees them end.
  virtual void abandon() = 0;

  // Returns whether nothing more can arrive: all connections have ended, and their data has been taken.
  virtual bool is_broken() const = 0;
};

// All connections of one rank to the others of its group. Outlives the links and streams that it opens.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  virtual Board& board() = 0;
  // Returns the maximum number of connections of a link; 0: all ranks are on this host.
  virtual std::size_t streams() const = 0;

  // Progress thread, like everything below. Called once each: a link to a rank on another host, a stream to any other
  // rank.
  virtual std::unique_ptr<Link> open_link(int rank, Link::Handlers handlers) = 0;
  virtual std::unique_ptr<ByteStream> open_stream(int rank) = 0;
  // Arranges that data on a stream wakes the thread, which is about to sleep.
  virtual void arm_streams() = 0;
};

}  // namespace smdp
