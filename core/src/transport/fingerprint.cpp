#include "transport/fingerprint.h"

#include <algorithm>
#include <limits>

namespace smdp {
namespace {

constexpr std::uint64_t kSeed = 0xcbf29ce484222325;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccd;
  return hash ^ (hash >> 32);
}

std::uint64_t hash_of(std::span<const std::int64_t> extents, std::uint64_t hash) {
  hash = mixed(hash, extents.size() + 1);
  for (const std::int64_t extent : extents) hash = mixed(hash, static_cast<std::uint64_t>(extent));
  return hash;
}

}  // namespace

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kReduce:
      return "reduce";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kAllToAll:
      return "all_to_all";
    case OpKind::kGather:
      return "gather";
    case OpKind::kScatter:
      return "scatter";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kSend:
      return "send";
    case OpKind::kRecv:
      return "recv";
    case OpKind::kNone:
      break;
  }
  return "nothing";
}

void Fingerprint::set_shape(std::span<const std::int64_t> extents) {
  count = 1;
  for (const std::int64_t extent : extents) count *= static_cast<std::uint64_t>(extent);
  add_shape(extents);
}

void Fingerprint::add_shape(std::span<const std::int64_t> extents) {
  ndim = static_cast<std::uint8_t>(std::min<std::size_t>(extents.size(), kMostDims));
  for (std::size_t i = 0; i < std::min(extents.size(), kMaxDims); ++i) {
    const auto extent = static_cast<std::uint64_t>(extents[i]);
    dims[i] = static_cast<std::uint32_t>(std::min<std::uint64_t>(extent, std::numeric_limits<std::uint32_t>::max()));
  }
  shape = hash_of(extents, kSeed) | 1;
}

void Fingerprint::add_shapes(const std::vector<std::vector<std::int64_t>>& shapes) {
  add_shape(shapes.front());
  ndim |= kSeveral;
  std::uint64_t hash = kSeed;
  for (const std::vector<std::int64_t>& extents : shapes) {
    // Empty blocks are alike: who has nothing often has it in another shape.
    const bool is_empty = std::find(extents.begin(), extents.end(), 0) != extents.end();
    hash = is_empty ? mixed(hash, 0) : hash_of(extents, hash);
  }
  shape = hash | 1;
}

std::string Fingerprint::describe() const {
  std::string text = name_of(kind);
  text += " #" + std::to_string(sequence);
  if (kind == OpKind::kNone || kind == OpKind::kBarrier) return text;
  text += std::string(" ") + name_of(dtype);
  const bool is_first = (ndim & kSeveral) != 0;
  const std::size_t known = ndim & kMostDims;
  if (shape != 0) {
    // Of a gather and a scatter the first dimension is each rank's own.
    const bool is_open = kind == OpKind::kGather || kind == OpKind::kScatter;
    text += "[";
    for (std::size_t i = 0; i < std::min(known, kMaxDims); ++i) {
      text += (i == 0 ? "" : ", ") + (i == 0 && is_open ? ":" : std::to_string(dims[i]));
    }
    text += known > kMaxDims ? ", ...]" : "]";
    if (is_first) text += ", ...";
  }
  if (kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter) {
    text += std::string(" ") + name_of(op);
  }
  if (root >= 0)
    text += (kind == OpKind::kReduce || kind == OpKind::kGather ? " to rank " : " from rank ") + std::to_string(root);
  const bool has_counts = kind == OpKind::kAllGather || kind == OpKind::kReduceScatter;
  if (has_counts && count != 0 && (shape == 0 || is_first)) text += " (counts " + std::to_string(count) + ")";
  // What is written may be alike where the shapes are not.
  if (is_first || known > kMaxDims) text += " (shape #" + std::to_string(shape) + ")";
  return text;
}

std::string describe_mismatch(const std::string& first, const Fingerprint& theirs_first, const std::string& second,
                              const Fingerprint& theirs_second) {
  return first + " called " + theirs_first.describe() + ", but " + second + " called " + theirs_second.describe() +
         ". All ranks of a group must call the same operations in the same order, with the same shapes, dtypes and "
         "roots.";
}

}  // namespace smdp
