#include "fusion/kept_values.h"

#include <algorithm>

#include "fusion/finite.h"

namespace smdp {
namespace {

constexpr std::size_t kLate = GradientReducer::kKeptParts - 1;  // index of the late means among the parts

}  // namespace

bool KeptValues::has_state() const {
  return std::any_of(buffers_.begin(), buffers_.end(),
                     [](const FusionBuffer& buffer) { return buffer.codec && buffer.codec->has_state(); });
}

void KeptValues::look_at(FusionBuffer& buffer) {
  if (buffer.is_finite || !has_state()) return;
  clear_others(buffer);
  buffer.is_finite = are_finite(buffer.data, buffer.plan.count, buffer.plan.dtype);
  if (!buffer.codec) return;
  for (const std::size_t index : buffer.plan.members) {
    late_.add_to(index, reinterpret_cast<float*>(buffer.place(plan_.place(index).offset)));
  }
}

void KeptValues::clear_others(FusionBuffer& buffer) const {
  if (sharded_.empty() || !buffer.codec) return;
  const ShardedBuffer& shares = sharded_[static_cast<std::size_t>(&buffer - buffers_.data())];
  auto* values = reinterpret_cast<float*>(buffer.data);
  std::size_t end = 0;
  for (const ShardedBuffer::Range& own : shares.owned) {
    std::fill(values + end, values + own.begin, 0.0F);
    end = own.end;
  }
  std::fill(values + end, values + shares.count, 0.0F);
}

bool KeptValues::is_finite() const {
  return std::all_of(buffers_.begin(), buffers_.end(),
                     [](const FusionBuffer& buffer) { return buffer.is_finite.value_or(true); });
}

void KeptValues::forget_step() {
  for (FusionBuffer& buffer : buffers_) buffer.is_finite = false;
}

void KeptValues::end_step(const StepNotes& notes) {
  const bool counts = is_finite();
  for (const FusionBuffer& buffer : buffers_) {
    if (buffer.codec) buffer.codec->end_step(counts);
  }
  for (std::size_t index = 0; counts && index < gradients_.size(); ++index) {
    const Place& place = plan_.place(index);
    const FusionBuffer& buffer = buffers_[place.buffer];
    if (!buffer.codec || !buffer.codec->has_state()) continue;
    const auto* mean = reinterpret_cast<const float*>(buffer.place(place.offset));
    late_.keep(index, mean, gradients_[index].count, notes.is_used(index));
  }
}

void KeptValues::rescale(float factor) {
  for (const FusionBuffer& buffer : buffers_) {
    if (buffer.codec) buffer.codec->rescale(factor);
  }
  late_.rescale(factor);
}

bool KeptValues::copy(std::size_t index, std::size_t part, float* out) {
  const float* kept = values(index, part);
  const std::size_t count = gradients_[index].count;
  if (kept == nullptr || std::all_of(kept, kept + count, [](float value) { return value == 0; })) return false;
  std::copy(kept, kept + count, out);
  return true;
}

void KeptValues::set(std::size_t index, std::size_t part, const float* values) {
  const std::size_t count = gradients_[index].count;
  if (part == kLate && has_state()) late_[index].assign(count, 0);
  if (float* to = this->values(index, part)) std::copy(values, values + count, to);
}

float* KeptValues::values(std::size_t index, std::size_t part) {
  if (part == kLate) return late_[index].empty() ? nullptr : late_[index].data();
  const Place& place = plan_.place(index);
  const FusionBuffer& buffer = buffers_[place.buffer];
  const std::vector<Residual*> parts = buffer.codec ? buffer.codec->kept() : std::vector<Residual*>();
  return part < parts.size() ? parts[part]->now(place.offset) : nullptr;
}

}  // namespace smdp
