// Gradients of one dtype that travel together, in one step after the other.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/shortage.h"
#include "fusion/gradient_codec.h"
#include "fusion/layout.h"
#include "smdp/group.h"
#include "smdp/observability.h"

namespace smdp {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

// Zeros, 64-byte aligned.
inline AlignedMemory allocate_zeros(std::size_t bytes) {
  const std::size_t rounded = std::max<std::size_t>(64, (bytes + 63) / 64 * 64);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
  if (memory == nullptr) throw shortage("aligned_alloc", "a fusion buffer", ENOMEM, rounded);
  std::memset(memory, 0, rounded);
  return AlignedMemory(memory);
}

struct FusionBuffer {
  PlannedBuffer plan;
  AlignedMemory memory;          // of a gradient that is alone: only where this rank has none, or has it on a device
  std::shared_ptr<void> pinned;  // holds `memory` pinned, where gradients of it are on devices
  std::byte* data = nullptr;     // in this step
  std::unique_ptr<GradientCodec> codec;
  std::size_t missing = 0;        // places not filled in this step
  std::size_t coming = 0;         // gradients that were not ready in this step
  std::optional<bool> is_finite;  // the sum; only where compression keeps something of a step
  Group::Handle done;
  // For the trace: when its first gradient came, when its last, and when its means were back in their places.
  TimePoint first{};
  TimePoint full{};
  TimePoint returned{};

  // Copies a gradient, times `factor`, or zeros for null, to its place, or takes it where it lies; the gap behind it
  // becomes zero again, too: a lossy sum leaves marks there.
  void fill(const Gradient& gradient, std::size_t offset, void* from, double factor);
  // Ready, fused, sent, reduced, returned. what: its gradients.
  void write_trace(std::size_t number, std::uint64_t step, const std::string& what) const;
  std::byte* place(std::size_t offset) const { return data + offset * size_of(plan.dtype); }
};

// With memory, and between hosts with codecs.
std::vector<FusionBuffer> make_buffers(const Layout& layout, const GradientReducerOptions& options, std::size_t hosts);

}  // namespace smdp
