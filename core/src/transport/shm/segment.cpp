#include "transport/shm/segment.h"

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "common/shortage.h"

namespace smdp {
namespace {

constexpr std::size_t kPage = 4096;
constexpr char kLocalMemory[] = "memory that the ranks of this host share";

struct Header {
  std::uint64_t magic;
  std::uint64_t nonce;
};
constexpr std::uint64_t kMagic = 0x31306d6873706473;  // "sdpshm01"

constexpr std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

std::size_t total_bytes(std::size_t ranks, std::size_t slot_bytes) {
  return kPage + round_up(ranks * sizeof(RankFlags), kPage) + ranks * kLanes * 2 * slot_bytes +
         round_up(ranks * ranks * sizeof(RingIndex), kPage) + ranks * ranks * Segment::kRingBytes;
}

}  // namespace

Segment::Segment(std::size_t ranks, std::size_t slot_bytes, std::uint64_t nonce)
    : ranks_(ranks),
      slot_bytes_(slot_bytes),
      mapping_(total_bytes(ranks, slot_bytes), kLocalMemory, SharedMapping::Pages::kLazily) {
  auto* header = new (base()) Header{kMagic, nonce};
  static_cast<void>(header);
}

Segment::Segment(FileDescriptor memfd, std::size_t ranks, std::size_t slot_bytes, std::uint64_t nonce)
    : ranks_(ranks), slot_bytes_(slot_bytes), mapping_(std::move(memfd), total_bytes(ranks, slot_bytes), kLocalMemory) {
  Header header;
  std::memcpy(&header, base(), sizeof header);
  if (header.magic != kMagic || header.nonce != nonce) {
    throw Error("[smdp] the shared memory received from a local rank is not the one it announced");
  }
}

RankFlags& Segment::flags(std::size_t rank) const {
  return *reinterpret_cast<RankFlags*>(base() + kPage + rank * sizeof(RankFlags));
}

std::byte* Segment::slot(std::size_t rank, std::size_t lane, std::uint64_t round) const {
  const std::size_t slots = kPage + round_up(ranks_ * sizeof(RankFlags), kPage);
  return base() + slots + ((rank * kLanes + lane) * 2 + round % 2) * slot_bytes_;
}

RingIndex& Segment::ring_index(std::size_t from, std::size_t to) const {
  const std::size_t rings = kPage + round_up(ranks_ * sizeof(RankFlags), kPage) + ranks_ * kLanes * 2 * slot_bytes_;
  return *reinterpret_cast<RingIndex*>(base() + rings + (from * ranks_ + to) * sizeof(RingIndex));
}

std::byte* Segment::ring(std::size_t from, std::size_t to) const {
  const std::size_t rings = kPage + round_up(ranks_ * sizeof(RankFlags), kPage) + ranks_ * kLanes * 2 * slot_bytes_ +
                            round_up(ranks_ * ranks_ * sizeof(RingIndex), kPage);
  return base() + rings + (from * ranks_ + to) * kRingBytes;
}

}  // namespace smdp
