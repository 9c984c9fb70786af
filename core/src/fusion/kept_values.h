// What compression keeps of gradients from one step to the next: residuals that have not been sent, momentum, and late
// means.
#pragma once

#include <cstddef>
#include <vector>

#include "fusion/fusion_buffer.h"
#include "fusion/fusion_plan.h"
#include "fusion/late_means.h"
#include "fusion/sharded_buffers.h"
#include "fusion/step_notes.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

class KeptValues {
 public:
  // All of them must outlive this object. sharded: what this rank owns of each buffer; empty: every rank has all means.
  KeptValues(const std::vector<Gradient>& gradients, std::vector<FusionBuffer>& buffers, const FusionPlan& plan,
             const std::vector<ShardedBuffer>& sharded)
      : gradients_(gradients), buffers_(buffers), plan_(plan), sharded_(sharded), late_(gradients.size()) {}

  // Returns whether the codecs of the buffers keep state, which depends on the buffers' layout.
  bool has_state() const;

  // Called before any caller is told that a buffer's sum is there, because a gradient's own memory may be gone
  // afterwards.
  void look_at(FusionBuffer& buffer);
  // Called at the end of a step, with its notes. A gradient of any dtype that is not finite makes loss scaling skip the
  // step, so such a step changes nothing here.
  void end_step(const StepNotes& notes);
  // Of the sums of this step that this rank has. With shards the ranks have to agree before end_step().
  bool is_finite() const;
  void forget_step();

  // See GradientReducer.
  void rescale(float factor);
  bool copy(std::size_t index, std::size_t part, float* out);
  void set(std::size_t index, std::size_t part, const float* values);

 private:
  // With shards, writes zeros over what other ranks own.
  void clear_others(FusionBuffer& buffer) const;
  // Returns null if there are none.
  float* values(std::size_t index, std::size_t part);

  const std::vector<Gradient>& gradients_;
  std::vector<FusionBuffer>& buffers_;
  const FusionPlan& plan_;
  const std::vector<ShardedBuffer>& sharded_;
  LateMeans late_;
};

}  // namespace smdp
