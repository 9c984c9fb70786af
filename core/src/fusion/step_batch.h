// The one operation of a step: every fusion buffer, as it is filled, then the step's notes.
#pragma once

#include <chrono>
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

// How often a wait looks whether to go on.
inline constexpr std::chrono::milliseconds kStepCheck{200};

// Thread safety: one at a time, but label().
class StepBatch {
 public:
  // All of them live longer.
  StepBatch(Group& group, const std::vector<Gradient>& gradients, const FusionPlan& plan,
            std::vector<FusionBuffer>& buffers, StepNotes& notes)
      : group_(group), gradients_(gradients), plan_(plan), buffers_(buffers), notes_(notes) {}

  // There are new buffers.
  void reset();
  // over: what the ranks have told of the step before, see StepNotes::kOverInTime.
  void reorder(const std::vector<std::uint32_t>& over);
  // Before a step.
  void begin(const std::function<Reduction(const FusionBuffer&)>& reduction);
  // Sends what is filled, in an order that is the same on all ranks. is_finished: the notes as well.
  void send_filled(bool is_finished);

  // Waits for a part of the operation, which ends with an error or after all its parts. Throws the error. interrupted:
  // asked now and then; true closes the group. May be empty.
  void wait_for(Operation& part, const std::function<bool()>& interrupted);

  // Of the operation; null before something is sent.
  const Group::Handle& handle() const { return handle_; }
  // Buffers, in the order in which they are sent, whose sums are there.
  std::uint32_t buffers_over() const;

 private:
  // What is under way: the first buffer that is not done, and how many follow.
  std::string label(const Batch& batch) const;

  Group& group_;
  const std::vector<Gradient>& gradients_;
  const FusionPlan& plan_;
  std::vector<FusionBuffer>& buffers_;
  StepNotes& notes_;
  std::size_t kept_ = 0;               // buffers at the front of sequence_ that are in order
  std::vector<std::size_t> sequence_;  // of buffers, as they are sent in this step
  std::size_t next_ = 0;               // of sequence_: first buffer not sent
  std::shared_ptr<Batch> batch_;
  Group::Handle handle_;
};

// Of those that travel in a buffer, for messages.
std::string label_of(const FusionBuffer& buffer, const std::vector<Gradient>& gradients);

}  // namespace smdp
