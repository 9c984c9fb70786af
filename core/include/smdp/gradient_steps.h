// Drives a GradientReducer for a framework that runs ops as soon as their inputs are available. Gradients of one step
// arrive in any order and from any thread, and those of the next step may arrive before this one is finished.
//
// A step consists of begin(), ready() and mean() for each gradient, finish() and leave(). No function waits for other
// ranks. Functions that close the group (abort(), and leave() or begin() for an incomplete step) return once its
// operation on this rank has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "smdp/export.h"
#include "smdp/gradient_reducer.h"
#include "smdp/group.h"

namespace smdp {

// Thread-safe. Copies refer to the same object.
class SMDP_API GradientSteps {
 public:
  // Collective, like GradientReducer's constructor.
  GradientSteps(Group& group, std::vector<Gradient> gradients, const GradientReducerOptions& options);

  // Returns the number of this object in the process, for find().
  std::uint64_t id() const;
  // Returns the object with this number, or null if it no longer exists.
  static std::unique_ptr<GradientSteps> find(std::uint64_t id);

  // Opens a step and returns its number. If no gradient of the current step has arrived, returns that step's number
  // again. Throws if the previous step was never finished (because an op failed in the middle, or two threads run steps
  // at once), after closing the group on all ranks. Throws the group's error if the group has failed.
  std::uint64_t begin();
  // Hands over gradient `index` of `step`, which is stored at `data`; its mean will be written there. The memory
  // belongs to the reducer until `release` runs on the completion thread. If this throws, the gradient was not taken.
  void ready(std::uint64_t step, std::size_t index, void* data, std::function<void()> release);
  // Calls `done` with a null pointer once the mean is there, or with the step's error. `done` runs at once in the
  // caller's thread if the result is already known, and on the completion thread otherwise.
  void mean(std::uint64_t step, std::size_t index, std::function<void(std::exception_ptr)> done);
  // Called after the last ready() of the step. Gradients that were not ready count as zero.
  void finish(std::uint64_t step);
  // Ends what one begin() started: it hands over no more gradients of the step. If gradients were ready but finish()
  // was not called, and every other begin() that returned this number has ended as well, closes the group on all ranks.
  void leave(std::uint64_t step);

  // See GradientReducer.
  std::string explain() const;
  const std::string& group_name() const;
  // Fails all current and future operations on all ranks.
  void abort(const std::string& reason);

 private:
  class Impl;
  explicit GradientSteps(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace smdp
