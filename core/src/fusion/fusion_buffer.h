// Gradients of one dtype that travel together in every step.
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

// Returns zeroed memory, aligned to 64 bytes.
inline AlignedMemory allocate_zeros(std::size_t bytes) {
  const std::size_t rounded = std::max<std::size_t>(64, (bytes + 63) / 64 * 64);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
  if (memory == nullptr) throw shortage("aligned_alloc", "a fusion buffer", ENOMEM, rounded);
  std::memset(memory, 0, rounded);
  return AlignedMemory(memory);
}

struct FusionBuffer {
  PlannedBuffer plan;
  AlignedMemory memory;          // for a single large gradient: used only if this rank has none, or has it on a device
  std::shared_ptr<void> pinned;  // keeps `memory` pinned if some of its gradients are on devices
  std::byte* data = nullptr;     // in this step
  std::byte* own = nullptr;      // in this step: where the means that this rank owns go; null: they stay in `data`
  std::unique_ptr<GradientCodec> codec;
  std::size_t missing = 0;        // places not filled in this step
  std::size_t coming = 0;         // gradients that were not ready in this step
  std::optional<bool> is_finite;  // whether the sum is finite; only if compression keeps state
  Group::Handle done;
  // For the trace: when its first gradient arrived, when its last, and when its means were written back.
  TimePoint first{};
  TimePoint full{};
  TimePoint returned{};

  // Copies a gradient times `factor`, or zeros if `from` is null, to its place, or uses it in place. Clears the gap
  // behind it as well, where a lossy sum leaves values.
  void fill(const Gradient& gradient, std::size_t offset, void* from, double factor);
  // Writes when it was ready, fused, sent, reduced and returned. what: its gradients.
  void write_trace(std::size_t number, std::uint64_t step, const std::string& what) const;
  // Null if its shards are equal.
  const ShardEnds* ends() const { return plan.ends.empty() ? nullptr : &plan.ends; }
  std::byte* place(std::size_t offset) const { return data + offset * size_of(plan.dtype); }
};

// Makes the buffers with their memory and, between hosts, their codecs.
std::vector<FusionBuffer> make_buffers(const Layout& layout, const GradientReducerOptions& options, std::size_t hosts);

}  // namespace smdp
