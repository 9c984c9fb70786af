#include "transport/fingerprint.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/counted.h"

namespace smdp {
namespace {

constexpr std::uint64_t kSeed = 0xcbf29ce484222325;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccd;
  return hash ^ (hash >> 32);
}

std::uint32_t shortened(std::uint64_t extent) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(extent, std::numeric_limits<std::uint32_t>::max()));
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
    case OpKind::kSplit:
      return "split";
    case OpKind::kSend:
      return "send";
    case OpKind::kRecv:
      return "recv";
    case OpKind::kAllReduceSparse:
      return "all_reduce_sparse";
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
    dims[i] = shortened(static_cast<std::uint64_t>(extents[i]));
  }
  shape = hash_of(extents, kSeed) | 1;
}

void Fingerprint::set_counts(const std::vector<std::uint64_t>& counts) {
  const bool is_even = std::all_of(counts.begin(), counts.end(), [&](auto one) { return one == counts.front(); });
  if (is_even) {
    count = counts.empty() ? 0 : counts.front();
    return;
  }
  set_blocks(counts);
  count = kSeed;
  for (const std::uint64_t one : counts) count = mixed(count, one);
}

void Fingerprint::set_blocks(const std::vector<std::uint64_t>& counts) {
  ndim = static_cast<std::uint8_t>(kSeveral | std::min<std::size_t>(counts.size(), kMostDims));
  for (std::size_t i = 0; i < std::min(counts.size(), kMaxDims); ++i) dims[i] = shortened(counts[i]);
}

void Fingerprint::add_shapes(const std::vector<std::vector<std::int64_t>>& shapes) {
  std::vector<std::uint64_t> counts;
  std::uint64_t hash = kSeed;
  for (const std::vector<std::int64_t>& extents : shapes) {
    // Empty blocks are treated as equal, because ranks often pass different empty shapes.
    const bool is_empty = std::find(extents.begin(), extents.end(), 0) != extents.end();
    hash = is_empty ? mixed(hash, 0) : hash_of(extents, hash);
    counts.push_back(1);
    for (const std::int64_t extent : extents) counts.back() *= static_cast<std::uint64_t>(extent);
  }
  set_blocks(counts);
  shape = hash | 1;
}

void Fingerprint::set_name(std::string_view text) {
  if (text.empty()) return;
  name = kSeed;
  for (const char letter : text) name = mixed(name, static_cast<unsigned char>(letter));
  name |= 1;
  std::string_view end = text.substr(text.size() - std::min(text.size(), sizeof name_end));
  while (!end.empty() && (end.front() & 0xc0) == 0x80) end.remove_prefix(1);  // the rest of a UTF-8 character
  std::copy(end.begin(), end.end(), name_end);
}

std::string Fingerprint::describe_name() const {
  return name == 0 ? "" : "'" + std::string(name_end, ::strnlen(name_end, sizeof name_end)) + "'";
}

std::string Fingerprint::describe() const {
  std::string text = name_of(kind);
  if (name != 0) text += " " + describe_name();
  if (sequence != 0) text += " #" + std::to_string(sequence);
  if (kind == OpKind::kNone || kind == OpKind::kBarrier || kind == OpKind::kSplit) return text;
  text += std::string(" ") + name_of(dtype);
  const bool is_list = (ndim & kSeveral) != 0;
  const bool is_open = kind == OpKind::kGather || kind == OpKind::kScatter;  // the first extent may differ between
                                                                             // ranks
  const std::size_t known = ndim & kMostDims;
  if (is_list || shape != 0) {
    text += is_list ? " in blocks of " : "[";
    for (std::size_t i = 0; i < std::min(known, kMaxDims); ++i) {
      text += (i == 0 ? "" : ", ") + (i == 0 && is_open ? ":" : std::to_string(dims[i]));
    }
    if (known > kMaxDims) text += ", ...";
    text += is_list ? " elements" : "]";
  } else if ((kind == OpKind::kAllGather || kind == OpKind::kReduceScatter) && count != 0) {
    text += " in blocks of " + std::to_string(count) + " elements";
  }
  if (kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter ||
      kind == OpKind::kAllReduceSparse) {
    text += std::string(" ") + name_of(op);
  }
  if (kind == OpKind::kAllReduceSparse) {
    return text + " with " + counted(static_cast<std::size_t>(root), "sparse dimension");
  }
  if (kind == OpKind::kAllGather) return root < 0 ? text : text + " into memory that exists once per host";
  if (root >= 0)
    text += (kind == OpKind::kReduce || kind == OpKind::kGather ? " to rank " : " from rank ") + std::to_string(root);
  return text;
}

std::string describe_sizes(const std::string& who, std::size_t expected_bytes, const std::string& peer,
                           std::size_t sent_bytes, const Fingerprint& operation) {
  // A different dtype is reported earlier as a mismatch, so both sides have the same element size.
  const std::size_t element = size_of(operation.dtype);
  return who + " expects " + std::to_string(expected_bytes / element) + " elements from " + peer + ", which sends " +
         std::to_string(sent_bytes / element) + ", in " + operation.describe() +
         ". The counts of a sender must equal those of its receiver.";
}

std::string describe_mismatch(const std::string& first, const Fingerprint& theirs_first, const std::string& second,
                              const Fingerprint& theirs_second) {
  const std::string text = theirs_first.describe();
  const std::string other = theirs_second.describe();
  return first + " called " + text + ", but " + second + " called " + other +
         (text == other
              ? std::string(" with a different ") + (theirs_first.name == theirs_second.name ? "shape" : "name") +
                    ", beyond what is shown here"
              : "") +
         ". All ranks of a group must call the same operations in the same order, with the same names, shapes, dtypes "
         "and roots.";
}

}  // namespace smdp
