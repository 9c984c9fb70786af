// What compression keeps of gradients from one step for the next: what has not been sent yet, momentum, and means that
// nobody has taken.
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
  // All of them live longer.
  KeptValues(const std::vector<Gradient>& gradients, const std::vector<FusionBuffer>& buffers, const FusionPlan& plan)
      : gradients_(gradients), buffers_(buffers), plan_(plan), late_(gradients.size()) {}

  // Whether the codecs of the buffers keep something, which belongs to their layout.
  bool has_state() const;

  // Before anyone is told that a buffer's sum is there: a gradient's own memory may be gone afterwards.
  void look_at(FusionBuffer& buffer);
  // The step is over; notes: of it. A gradient of any dtype that is not finite makes whoever scales the loss skip the
  // step, and of such a step nothing has happened.
  void end_step(const StepNotes& notes);

  // See GradientReducer.
  void rescale(float factor);
  bool copy(std::size_t index, std::size_t part, float* out);
  void set(std::size_t index, std::size_t part, const float* values);

 private:
  // Null: there is none.
  float* values(std::size_t index, std::size_t part);

  const std::vector<Gradient>& gradients_;
  const std::vector<FusionBuffer>& buffers_;
  const FusionPlan& plan_;
  LateMeans late_;
};

}  // namespace smdp
