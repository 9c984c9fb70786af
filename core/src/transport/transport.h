// How a rank moves bytes to the other ranks of its group: by rounds of exchange inside its host, and peer to peer.
//
// Collectives and the mailbox know only these interfaces. shm/ and tcp/ are behind them, and tests put faults around
// both. A call moves a chunk or a message, never one element.
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

// Which thread of a rank sleeps while it waits for others: the one that called the operation, or the progress thread.
enum class Sleeper : std::uint8_t { kCaller, kProgress };

// Collective exchange between the local ranks of a group, in rounds.
//
// In a round of a lane every rank may write into its own slot and publish it; others read it and mark the round
// consumed. A rank has two slots per lane, used by parity: it may write round r once all peers have consumed r - 2.
// All ranks go through the same rounds in the same order; a round in which a rank has nothing to publish still counts.
//
// Thread safety: one thread at a time per rank (whoever drives the group's operation), except wake().
class Board {
 public:
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  virtual ~Board() = default;

  std::size_t size() const { return size_; }
  std::size_t me() const { return me_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  int rank_of(std::size_t local) const { return members_.local_ranks()[local]; }

  // An operation begins. Every operation ends with met() for all peers, so none is ever more than one away.
  virtual void enter(const Fingerprint& fingerprint) = 0;

  // What it entered last.
  virtual const Fingerprint& operation() const = 0;

  // Throws MismatchError if a rank that has entered this operation called another one. Whoever waits for a peer asks:
  // the peer may have given up because of a third rank, and then what is awaited of it never comes.
  virtual void compare_all() = 0;

  // The operation has failed with an error that every local rank finds by itself. Some ranks may have taken rounds that
  // others have not, so all of them must give it up before the next operation can enter: that one waits for gave_up()
  // of all peers, then calls agree_on_rounds().
  virtual void give_up() = 0;
  virtual bool is_in_doubt() const = 0;
  virtual void agree_on_rounds() = 0;

  // First of `count` new rounds.
  virtual std::uint64_t take_rounds(std::size_t lane, std::uint64_t count) = 0;

  // Another rank's slot is written to only where an algorithm says so (see two_shot.cpp).
  virtual std::byte* slot(std::size_t local, std::size_t lane, std::uint64_t round) const = 0;
  std::byte* my_slot(std::size_t lane, std::uint64_t round) const { return slot(me_, lane, round); }

  virtual void publish(std::size_t lane, std::uint64_t round) = 0;
  virtual void consume(std::size_t lane, std::uint64_t round) = 0;

  // How slots of such an operation are written: plainly, or past the caches. The first is faster between cores that
  // share a cache, the second up to three times between cores that do not, and what a system tells of that is often
  // wrong. So local rank 0 measures, and the others follow it; ranks that differ for one operation do no harm.
  virtual bool streams_slots(SlotUse use) const = 0;
  // seconds: from when all were there, for `chunks` slots of each rank that has as many.
  virtual void record(SlotUse use, double seconds, std::size_t chunks) = 0;

  // Awaitables; they throw MismatchError. met: `local` has entered this operation, or the next, and called the same.
  // produced: it has published `round`. writable: it has read what round's slot held before. gave_up: it has given up
  // the operation that this rank gave up last.
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

  // What those wait for, polled.
  virtual bool has_met(std::size_t local) = 0;
  virtual bool is_produced(std::size_t local, std::size_t lane, std::uint64_t round) = 0;
  virtual bool is_writable(std::size_t local, std::size_t lane, std::uint64_t round) = 0;
  virtual bool has_given_up(std::size_t local) const = 0;

  // Whoever drives is about to sleep. What another local rank does from here on wakes it, so it looks once more first.
  virtual void arm(Sleeper sleeper) = 0;
  // A caller sleeps, unless something has woken it since arm().
  virtual void sleep(std::chrono::nanoseconds at_most) = 0;
  virtual void disarm() = 0;
  // Any thread of this process: wakes whoever drives.
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

// Messages of collectives between this rank and one rank on another host. Both ranks name the messages of a direction
// in the same order: one that nobody has posted yet may hold up those behind it.
//
// Thread safety: progress thread only.
class Link {
 public:
  // Messages still under way: counted down as they end. Lives in the coroutine that waits for it.
  using Pending = std::size_t;

  struct Handlers {
    // A connection ended or failed, with the reason.
    std::function<void(int peer, const std::string& reason)> on_broken;
    // What the peer sent of the collective with this sequence number does not fit (MismatchError).
    std::function<void(std::uint64_t sequence, std::exception_ptr error)> on_mismatch;
    // This process lacks something (ShortageError).
    std::function<void(std::exception_ptr error)> on_error;
  };

  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  // The collective that is running: messages of the same sequence number must carry the same fingerprint.
  virtual void enter(const Fingerprint& fingerprint) = 0;

  // Buffers stay valid until `pending` has been counted down or reset() was called. streams: the first so many
  // connections are used.
  virtual void send(std::uint64_t slot, const std::byte* data, std::size_t size, Pending& pending,
                    std::size_t streams) = 0;
  virtual void receive(std::uint64_t slot, std::byte* data, std::size_t size, Pending& pending) = 0;

  // The collective has failed on all ranks: none of its buffers is touched any more, not even to read it. What still
  // comes of it is thrown away.
  virtual void drop(std::uint64_t sequence) = 0;

  // Forgets everything under way and closes the connections: no buffer is touched afterwards.
  virtual void reset() = 0;

  // Forgets everything under way as soon as an operation has failed, because its buffers may be gone. The connections
  // stay open until reset(), so that the peer is told why before it sees them end.
  virtual void abandon() = 0;

  // Nothing will come any more: all connections have ended, and what they brought has been taken.
  virtual bool is_broken() const = 0;
};

// Everything by which one rank reaches the others of its group. Outlives the links and streams that it opens.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  virtual Board& board() = 0;
  // Most connections of a link; 0: all ranks are on this host.
  virtual std::size_t streams() const = 0;

  // Progress thread, as all below. Each once: a link to a rank on another host, a stream to any other rank.
  virtual std::unique_ptr<Link> open_link(int rank, Link::Handlers handlers) = 0;
  virtual std::unique_ptr<ByteStream> open_stream(int rank) = 0;
  // The thread is about to sleep: what comes on a stream wakes it.
  virtual void arm_streams() = 0;
};

}  // namespace smdp
