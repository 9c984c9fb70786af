// The codecs of compressed gradients.
//
// int8 and top-k lose much, so they keep what was lost (the residual) and add it in the next step: error feedback
// (Seide et al., 2014; Karimireddy et al., 2019). A piece with NaN or infinity decodes to a value that is not finite
// and leaves its residual unchanged, so that loss scaling detects it. Whether a step counts is known only at its end,
// so its new residual is kept separately until end_step().
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "collectives/codec.h"
#include "fusion/residual.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

class GradientCodec : public Codec {
 public:
  // counts = false: discards what this step would have kept.
  virtual void end_step(bool /*counts*/) {}
  // Rescales residuals, because the loss scale was multiplied by this factor.
  virtual void rescale(float /*factor*/) {}
  // Returns whether there is state to protect, so that sums must be checked for values that are not finite.
  virtual bool has_state() const { return false; }
  // Returns that state, in the order of GradientReducer::copy_kept().
  virtual std::vector<Residual*> kept() { return {}; }
};

// Makes the codec of a buffer of `count` float32 values; null for Compression::kNone.
std::unique_ptr<GradientCodec> make_codec(const GradientReducerOptions& options, std::size_t count);

std::unique_ptr<GradientCodec> make_cast_codec(DType dtype);
// Blocks of 256 values: a float32 scale, absmax / 127, and an int8 per value.
std::unique_ptr<GradientCodec> make_int8_codec(std::size_t count);
// The `ratio` largest values of every piece, with momentum correction (Deep Gradient Compression, Lin et al., 2018):
// momentum is applied before the selection, so the optimizer must not apply it.
std::unique_ptr<GradientCodec> make_topk_codec(std::size_t count, double ratio, double momentum);

}  // namespace smdp
