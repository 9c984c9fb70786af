// What compression keeps of gradients from one step to the next: residuals that have not been sent, momentum, and late
// means.
#pragma once

#include <cstddef>
#include <vector>

#include "fusion/fusion_buffer.h"
#include "fusion/fusion_plan.h"
#include "fusion/late_means.h"
#include "fusion/step_notes.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

class KeptValues {
 public:
  // All of them must outlive this object.
  KeptValues(const std::vector<Gradient>& gradients, const std::vector<FusionBuffer>& buffers, const FusionPlan& plan)
      : gradients_(gradients), buffers_(buffers), plan_(plan), late_(gradients.size()) {}

  // Returns whether the codecs of the buffers keep state, which depends on the buffers' layout.
  bool has_state() const;

  // Called before any caller is told that a buffer's sum is there, because a gradient's own memory may be gone
  // afterwards.
  void look_at(FusionBuffer& buffer);
  // Called at the end of a step, with its notes. A gradient of any dtype that is not finite makes loss scaling skip the
  // step, so such a step changes nothing here.
  void end_step(const StepNotes& notes);

  // See GradientReducer.
  void rescale(float factor);
  bool copy(std::size_t index, std::size_t part, float* out);
  void set(std::size_t index, std::size_t part, const float* values);

 private:
  // Returns null if there are none.
  float* values(std::size_t index, std::size_t part);

  const std::vector<Gradient>& gradients_;
  const std::vector<FusionBuffer>& buffers_;
  const FusionPlan& plan_;
  LateMeans late_;
};

}  // namespace smdp
