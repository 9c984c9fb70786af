// Values that a codec carries from step to step, and their new values from the current step.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>

#include "common/shortage.h"

namespace smdp {

class Residual {
 public:
  // Starts as zeros. Memory is taken only by what is written, because a rank encodes only its own lane of a buffer.
  explicit Residual(std::size_t count) : count_(count), now_(allocate(count)), next_(allocate(count)) {}

  const float* now(std::size_t offset) const { return now_.get() + offset; }
  float* now(std::size_t offset) { return now_.get() + offset; }
  float* next(std::size_t offset) { return next_.get() + offset; }

  void end_step(bool counts) {
    if (counts) std::swap(now_, next_);
  }
  void rescale(float factor) {
    for (std::size_t i = 0; i < count_; ++i) {
      if (now_.get()[i] != 0) now_.get()[i] *= factor;
    }
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  static std::unique_ptr<float, Free> allocate(std::size_t count) {
    auto* memory = static_cast<float*>(std::calloc(count + 1, sizeof(float)));
    if (memory == nullptr) throw shortage("calloc", "the residuals of compression", ENOMEM, count * sizeof(float));
    return std::unique_ptr<float, Free>(memory);
  }

  std::size_t count_;
  std::unique_ptr<float, Free> now_;
  std::unique_ptr<float, Free> next_;
};

}  // namespace smdp
