// Drives a GradientReducer for a framework that runs ops as soon as their inputs are there: gradients of one step come
// in any order and from any thread, and those of the next may come before the last of this one is done.
//
// A step is: begin(), ready() and mean() for each gradient, finish(), leave(). Nothing waits for other ranks; what
// closes the group (abort(), leave() or begin() of a step that broke off) returns once its operation here has ended.
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

// Thread-safe. Copies are the same object.
class SMDP_API GradientSteps {
 public:
  // Collective, as GradientReducer is.
  GradientSteps(Group& group, std::vector<Gradient> gradients, const GradientReducerOptions& options);

  // Number of the object in this process, for find().
  std::uint64_t id() const;
  // The same object; null if it is gone.
  static std::unique_ptr<GradientSteps> find(std::uint64_t id);

  // Opens a step and returns its number; if nothing came of the one before, it is that one. Throws if the one before
  // was never finished (an op failed in the middle of it, or two threads run steps at once), after closing the group on
  // all ranks; and the group's error, if it failed.
  std::uint64_t begin();
  // Gradient `index` of `step` lies at `data`, where its mean will be. The memory belongs to the reducer until
  // `release` runs, on the completion thread. Throws without having taken it.
  void ready(std::uint64_t step, std::size_t index, void* data, std::function<void()> release);
  // `done` runs with a null pointer once the mean is there, or with the step's failure: at once, in the caller's
  // thread, if that is so already, else on the completion thread.
  void mean(std::uint64_t step, std::size_t index, std::function<void(std::exception_ptr)> done);
  // After the last ready() of the step. Gradients that did not come count as zero.
  void finish(std::uint64_t step);
  // Nothing more comes of one begin() of the step. If gradients came but finish() did not, and nothing more comes of
  // any other that gave the same number, closes the group on all ranks.
  void leave(std::uint64_t step);

  // As GradientReducer's.
  std::string explain() const;
  const std::string& group_name() const;
  // Fails what is in flight on all ranks, and all that comes.
  void abort(const std::string& reason);

 private:
  class Impl;
  explicit GradientSteps(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace smdp
