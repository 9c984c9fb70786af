// Sets the IEEE 754 mode for its lifetime: round to nearest even, denormals kept. A thread may have a different mode,
// e.g. after torch.set_flush_denormal(True), which would make the bits depend on the thread that adds.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace smdp {

#if defined(__x86_64__)

class FloatingPointMode final {
 public:
  FloatingPointMode() noexcept : saved_(_mm_getcsr()) {
    if ((saved_ & kControl) != kMasked) _mm_setcsr((saved_ & ~kControl) | kMasked);
  }
  ~FloatingPointMode() {
    if ((saved_ & kControl) != kMasked) _mm_setcsr(saved_);
  }
  FloatingPointMode(const FloatingPointMode&) = delete;
  FloatingPointMode& operator=(const FloatingPointMode&) = delete;

 private:
  static constexpr unsigned kMasked = 0x1f80;   // no exception traps
  static constexpr unsigned kControl = 0xffc0;  // flush to zero, rounding, masks, denormals are zero

  unsigned saved_;
};

#elif defined(__aarch64__)

class FloatingPointMode final {
 public:
  FloatingPointMode() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if ((saved_ & kControl) != 0) write(saved_ & ~kControl);
  }
  ~FloatingPointMode() {
    if ((saved_ & kControl) != 0) write(saved_);
  }
  FloatingPointMode(const FloatingPointMode&) = delete;
  FloatingPointMode& operator=(const FloatingPointMode&) = delete;

 private:
  // AHP, DN, FZ, rounding, FZ16, the trap enables, NEP, AH, FIZ
  static constexpr std::uint64_t kControl = 0x07c89f07;

  static void write(std::uint64_t value) noexcept { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }

  std::uint64_t saved_;
};

#else

class FloatingPointMode final {
 public:
  FloatingPointMode() noexcept {}
  ~FloatingPointMode() {}
};

#endif

}  // namespace smdp
