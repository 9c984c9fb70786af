// The wire types of gradients.
//
// int8 and top-k lose much, so they keep what was lost (the residual) and add it in the next step: error feedback
// (Seide et al., 2014; Karimireddy et al., 2019). A piece with a NaN or an infinity decodes to something that is not
// finite and leaves its residual alone, so that loss scaling sees it. Whether a step counts is known at its end only:
// what it would keep is put aside until end_step().
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
  // False: forget what this step would have left behind, as if it had never been.
  virtual void end_step(bool /*counts*/) {}
  // The loss scale has been multiplied by this, so residuals must be, too.
  virtual void rescale(float /*factor*/) {}
  // Not finite sums must be looked for: there is state to protect.
  virtual bool has_state() const { return false; }
  // That state, in the order of GradientReducer::copy_kept().
  virtual std::vector<Residual*> kept() { return {}; }
};

// For a buffer of `count` float32. Null for Compression::kNone.
std::unique_ptr<GradientCodec> make_codec(const GradientReducerOptions& options, std::size_t count);

std::unique_ptr<GradientCodec> make_cast_codec(DType dtype);
// Blocks of 256: a float32 scale, absmax / 127, and an int8 each.
std::unique_ptr<GradientCodec> make_int8_codec(std::size_t count);
// The `ratio` largest of every piece, with momentum correction (Deep Gradient Compression, Lin et al., 2018): momentum
// is applied before the choice, so the optimizer needs none.
std::unique_ptr<GradientCodec> make_topk_codec(std::size_t count, double ratio, double momentum);

}  // namespace smdp
