#include "transport/fingerprint.h"

#include <algorithm>
#include <limits>

namespace smdp {

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

void Fingerprint::set_shape(std::span<const std::int64_t> shape) {
  count = 1;
  ndim = static_cast<std::uint8_t>(std::min<std::size_t>(shape.size(), 255));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const auto extent = static_cast<std::uint64_t>(shape[i]);
    count *= extent;
    if (i < kMaxDims) {
      dims[i] = static_cast<std::uint32_t>(std::min<std::uint64_t>(extent, std::numeric_limits<std::uint32_t>::max()));
    }
  }
}

std::string Fingerprint::describe() const {
  std::string text = name_of(kind);
  text += " #" + std::to_string(sequence);
  if (kind == OpKind::kNone || kind == OpKind::kBarrier) return text;
  text += std::string(" ") + name_of(dtype);
  const bool has_shape = kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kBroadcast;
  if (has_shape) {
    text += "[";
    for (std::size_t i = 0; i < std::min<std::size_t>(ndim, kMaxDims); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
    }
    text += "]";
  }
  if (kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter) {
    text += std::string(" ") + name_of(op);
  }
  if (root >= 0)
    text += (kind == OpKind::kReduce || kind == OpKind::kGather ? " to rank " : " from rank ") + std::to_string(root);
  if ((kind == OpKind::kAllGather || kind == OpKind::kReduceScatter) && count != 0) {
    text += " (counts " + std::to_string(count) + ")";
  }
  return text;
}

std::string describe_mismatch(const std::string& first, const Fingerprint& theirs_first, const std::string& second,
                              const Fingerprint& theirs_second) {
  return first + " called " + theirs_first.describe() + ", but " + second + " called " + theirs_second.describe() +
         ". All ranks of a group must call the same operations in the same order, with the same shapes, dtypes and "
         "roots.";
}

}  // namespace smdp
