// The memory that the local ranks of one group share: a memfd that each of them maps.
//
//   header | RankFlags per rank | slots per rank: lane A x2, lane B x2 | one byte ring per ordered pair
//
// It starts as zeros, and a page takes memory only once it is touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/file_descriptor.h"
#include "transport/fingerprint.h"
#include "transport/shm/shared_mapping.h"
#include "transport/transport.h"

namespace smdp {

inline constexpr std::size_t kCacheLine = 128;  // two lines, because the prefetcher pairs them
// Ranks are at most one operation apart, so the fingerprints being compared still exist.
inline constexpr std::size_t kFingerprints = 2;

// Written by its owner rank and read by its local peers. Sleep words are also cleared by the rank that wakes the owner.
struct RankFlags {
  alignas(kCacheLine) std::atomic<std::uint64_t> produced[kLanes];
  std::atomic<std::uint64_t> entered;
  alignas(kCacheLine) std::atomic<std::uint64_t> consumed[kLanes];
  alignas(kCacheLine) std::atomic<std::uint32_t> sleep;                     // kAwake, kInFutex or kInEpoll: collectives
  alignas(kCacheLine) std::atomic<std::uint32_t> mail_sleep;                // kAwake or kInEpoll: point to point
  alignas(kCacheLine) std::atomic<std::uint32_t> streams_slots[kSlotUses];  // written by local rank 0
  alignas(kCacheLine) Fingerprint fingerprints[kFingerprints];
  // The last operation that the rank gave up, and the rounds that it would have taken next; see Board::give_up().
  alignas(kCacheLine) std::atomic<std::uint64_t> given_up;
  std::uint64_t next_rounds[kFingerprints][kLanes];
};

// One direction between two ranks: a single-producer, single-consumer ring of bytes.
struct RingIndex {
  alignas(kCacheLine) std::atomic<std::uint64_t> written;
  alignas(kCacheLine) std::atomic<std::uint64_t> read;
};

class Segment {
 public:
  static constexpr std::size_t kRingBytes = std::size_t{1} << 18;

  // ranks: local ranks that share it. slot_bytes: size of one slot of lane A; lane B has the same. The first
  // constructor creates the memfd, whose descriptor the other ranks get; the second maps a memfd received from its
  // creator.
  Segment(std::size_t ranks, std::size_t slot_bytes, std::uint64_t nonce);
  Segment(FileDescriptor memfd, std::size_t ranks, std::size_t slot_bytes, std::uint64_t nonce);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int descriptor() const { return mapping_.descriptor(); }
  void close_descriptor() { mapping_.close_descriptor(); }
  std::size_t ranks() const { return ranks_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  RankFlags& flags(std::size_t rank) const;
  std::byte* slot(std::size_t rank, std::size_t lane, std::uint64_t round) const;
  RingIndex& ring_index(std::size_t from, std::size_t to) const;
  std::byte* ring(std::size_t from, std::size_t to) const;

 private:
  std::byte* base() const { return mapping_.data(); }

  const std::size_t ranks_;
  const std::size_t slot_bytes_;
  SharedMapping mapping_;
};

}  // namespace smdp
