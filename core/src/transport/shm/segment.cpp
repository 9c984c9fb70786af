#include "transport/shm/segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
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

}  // namespace

Segment::Segment(std::size_t ranks, std::size_t slot_bytes, std::uint64_t nonce)
    : memfd_(::memfd_create("smdp", MFD_CLOEXEC)), ranks_(ranks), slot_bytes_(slot_bytes) {
  if (memfd_.get() < 0) throw shortage("memfd_create", kLocalMemory, errno, total_bytes());
  if (::ftruncate(memfd_.get(), static_cast<off_t>(total_bytes())) != 0) {
    throw shortage("ftruncate", kLocalMemory, errno, total_bytes());
  }
  map();
  auto* header = new (base_) Header{kMagic, nonce};
  static_cast<void>(header);
}

Segment::Segment(FileDescriptor memfd, std::size_t ranks, std::size_t slot_bytes, std::uint64_t nonce)
    : memfd_(std::move(memfd)), ranks_(ranks), slot_bytes_(slot_bytes) {
  map();
  close_descriptor();
  Header header;
  std::memcpy(&header, base_, sizeof header);
  if (header.magic != kMagic || header.nonce != nonce) {
    ::munmap(base_, total_bytes());
    base_ = nullptr;
    throw Error("[smdp] the shared memory received from a local rank is not the one it announced");
  }
}

Segment::~Segment() {
  if (base_ != nullptr) ::munmap(base_, total_bytes());
}

std::size_t Segment::total_bytes() const {
  return kPage + round_up(ranks_ * sizeof(RankFlags), kPage) + ranks_ * kLanes * 2 * slot_bytes_ +
         round_up(ranks_ * ranks_ * sizeof(RingIndex), kPage) + ranks_ * ranks_ * kRingBytes;
}

void Segment::map() {
  void* address = ::mmap(nullptr, total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, memfd_.get(), 0);
  if (address == MAP_FAILED) throw shortage("mmap", kLocalMemory, errno, total_bytes());
  base_ = static_cast<std::byte*>(address);
}

RankFlags& Segment::flags(std::size_t rank) const {
  return *reinterpret_cast<RankFlags*>(base_ + kPage + rank * sizeof(RankFlags));
}

std::byte* Segment::slot(std::size_t rank, std::size_t lane, std::uint64_t round) const {
  const std::size_t slots = kPage + round_up(ranks_ * sizeof(RankFlags), kPage);
  return base_ + slots + ((rank * kLanes + lane) * 2 + round % 2) * slot_bytes_;
}

RingIndex& Segment::ring_index(std::size_t from, std::size_t to) const {
  const std::size_t rings = kPage + round_up(ranks_ * sizeof(RankFlags), kPage) + ranks_ * kLanes * 2 * slot_bytes_;
  return *reinterpret_cast<RingIndex*>(base_ + rings + (from * ranks_ + to) * sizeof(RingIndex));
}

std::byte* Segment::ring(std::size_t from, std::size_t to) const {
  const std::size_t rings = kPage + round_up(ranks_ * sizeof(RankFlags), kPage) + ranks_ * kLanes * 2 * slot_bytes_ +
                            round_up(ranks_ * ranks_ * sizeof(RingIndex), kPage);
  return base_ + rings + (from * ranks_ + to) * kRingBytes;
}

}  // namespace smdp
