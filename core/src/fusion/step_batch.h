// The single operation of a step: every fusion buffer as soon as it is filled, then the step's notes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/batch.h"
#include "fusion/fusion_buffer.h"
#include "fusion/fusion_plan.h"
#include "fusion/step_notes.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// Thread safety: one thread at a time, except label().
class StepBatch {
 public:
  // All of them must outlive this object.
  StepBatch(Group& group, const std::vector<Gradient>& gradients, const FusionPlan& plan,
            std::vector<FusionBuffer>& buffers, StepNotes& notes, ShardScope shards)
      : group_(group), gradients_(gradients), plan_(plan), buffers_(buffers), notes_(notes), shards_(shards) {}

  // Called when there are new buffers.
  void reset();
  // over: what the ranks reported about the previous step, see StepNotes::kOverInTime.
  void reorder(const std::vector<std::uint32_t>& over);
  // Called before a step.
  void begin(const std::function<Reduction(const FusionBuffer&)>& reduction);
  // Sends what is filled, in an order that is the same on all ranks. is_finished: also sends the notes.
  void send_filled(bool is_finished);

  // Returns the operation's handle; null before something is sent.
  const Group::Handle& handle() const { return handle_; }
  // Returns whether a buffer is on its way.
  bool is_sent(std::size_t buffer) const {
    const auto end = sequence_.begin() + static_cast<std::ptrdiff_t>(next_);
    return std::find(sequence_.begin(), end, buffer) != end;
  }
  // Returns how many buffers, in the order of sending, have their sums.
  std::uint32_t buffers_over() const;

 private:
  // Describes what is in flight: the first buffer that is not done, and how many follow.
  std::string label(const Batch& batch) const;

  Group& group_;
  const std::vector<Gradient>& gradients_;
  const FusionPlan& plan_;
  std::vector<FusionBuffer>& buffers_;
  StepNotes& notes_;
  const ShardScope shards_;
  std::size_t kept_ = 0;               // buffers at the front of sequence_ that keep their order
  std::vector<std::size_t> sequence_;  // buffers in the order in which this step sends them
  std::size_t next_ = 0;               // index in sequence_ of the first buffer not sent
  std::shared_ptr<Batch> batch_;
  Group::Handle handle_;
};

// Names the gradients in a buffer, for messages.
std::string label_of(const FusionBuffer& buffer, const std::vector<Gradient>& gradients);

}  // namespace smdp
