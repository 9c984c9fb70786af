#include "smdp/gradient_steps.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "common/directory.h"
#include "common/mutex.h"
#include "smdp/error.h"

namespace smdp {
namespace {

using Done = std::function<void(std::exception_ptr)>;

// One gradient in one step.
struct GivenGradient {
  void* data = nullptr;
  std::function<void()> release;
  bool has_come = false;
  bool has_mean = false;
  std::vector<Done> waiting;
};

struct Step {
  std::vector<GivenGradient> given;
  std::vector<std::size_t> queued;  // arrived before the step's turn, or while others of these are handed on
  bool is_finished = false;
  bool is_ending = false;  // the reducer has been told, or is about to be
  int runs = 1;            // runs that were given this step's number and have not left it

  bool is_untouched() const {
    return !is_finished &&
           std::none_of(given.begin(), given.end(), [](const GivenGradient& gradient) { return gradient.has_come; });
  }
};

}  // namespace

class GradientSteps::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(Group& group, std::vector<Gradient> gradients, const GradientReducerOptions& options)
      : prefix_("[smdp] rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) + ": "),
        names_(names_of(gradients)),
        reducer_(group, std::move(gradients), options) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  // Every waiting caller gets an error.
  ~Impl() {
    if (steps_.empty()) return;
    fail(std::make_exception_ptr(ClosedError(prefix_ + "the gradients' reducer was closed in the middle of a step.")));
  }

  std::uint64_t begin() {
    Lock lock(mutex_);
    check_usable();
    // A step that was abandoned before its first gradient, e.g. at the end of the data, is reused.
    if (!steps_.empty() && steps_.back().is_untouched()) {
      ++steps_.back().runs;
      return last();
    }
    if (!steps_.empty() && !steps_.back().is_finished) {
      const std::string text =
          broken_off(last()) + " before the next one began, or two threads train the same variables at once.";
      lock.unlock();
      abort(text);
      throw Error(text);
    }
    steps_.emplace_back();
    steps_.back().given.resize(names_.size());
    if (steps_.size() == 1) is_open_ = true;
    return last();
  }

  void ready(std::uint64_t number, std::size_t index, void* data, std::function<void()> release) {
    {
      const Lock lock(mutex_);
      check_usable();
      Step& step = find(number, index);
      GivenGradient& gradient = step.given[index];
      if (gradient.has_come) throw Error(prefix_ + "gradient '" + names_[index] + "' was ready twice in one step.");
      gradient = {data, std::move(release), true, false, std::move(gradient.waiting)};
      if (number != first_ || !is_open_) {
        step.queued.push_back(index);
        return;
      }
    }
    hand_on(index, data);  // not under the lock, because it copies
  }

  void mean(std::uint64_t number, std::size_t index, Done done) {
    std::exception_ptr error;
    {
      const Lock lock(mutex_);
      if (number >= first_ && !error_) {
        GivenGradient& gradient = find(number, index).given[index];
        if (!gradient.has_mean) {
          gradient.waiting.push_back(std::move(done));
          return;
        }
      }
      if (number >= first_) error = error_;
    }
    done(error);
  }

  void finish(std::uint64_t number) {
    {
      const Lock lock(mutex_);
      check_usable();
      Step& step = find(number, 0);
      step.is_finished = true;
      if (number != first_ || !is_open_ || std::exchange(step.is_ending, true)) return;
    }
    end_backward();
  }

  void leave(std::uint64_t number) {
    {
      const Lock lock(mutex_);
      if (error_ || number < first_ || number - first_ >= steps_.size()) return;
      Step& step = steps_[number - first_];
      if (--step.runs > 0 || step.is_finished || step.is_untouched()) return;
    }
    abort(broken_off(number) + ". The error that this rank raised gives the reason.");
  }

  void abort(const std::string& reason) { fail(std::make_exception_ptr(Error(reason))); }

  GradientReducer& reducer() { return reducer_; }

  std::uint64_t id = 0;

 private:
  static std::string text_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& caught) {
      return caught.what();
    }
  }

  static std::vector<std::string> names_of(const std::vector<Gradient>& gradients) {
    std::vector<std::string> names;
    for (const Gradient& gradient : gradients) names.push_back(gradient.name);
    return names;
  }

  std::string broken_off(std::uint64_t number) const {
    return prefix_ + "step " + std::to_string(number) +
           " of these gradients was begun, but not all of them arrived. One of its operations failed";
  }

  // Returns the number of the newest step.
  std::uint64_t last() const SMDP_REQUIRES(mutex_) { return first_ + steps_.size() - 1; }

  void check_usable() const SMDP_REQUIRES(mutex_) {
    if (error_) std::rethrow_exception(error_);
  }

  Step& find(std::uint64_t number, std::size_t index) SMDP_REQUIRES(mutex_) {
    if (index >= names_.size() && !names_.empty()) {
      throw InvalidArgument(prefix_ + "there is no gradient " + std::to_string(index) + "; there are " +
                            std::to_string(names_.size()) + ".");
    }
    if (number < first_ || number - first_ >= steps_.size()) {
      throw InvalidArgument(prefix_ + "step " + std::to_string(number) + " of these gradients is not in progress.");
    }
    return steps_[number - first_];
  }

  void hand_on(std::size_t index, void* data) {
    try {
      reducer_.ready(index, data);
    } catch (...) {
      fail(std::current_exception());
    }
  }

  // Called once all of the first step's gradients have been handed on.
  void end_backward() {
    const auto self = shared_from_this();  // the reducer lives until it has called back
    try {
      reducer_.finish();
      reducer_.then([self](const std::vector<std::size_t>& indices) { self->on_means(indices); },
                    [self](std::exception_ptr error) { self->on_end(std::move(error)); });
    } catch (...) {
      fail(std::current_exception());
    }
  }

  void on_means(const std::vector<std::size_t>& indices) {
    std::vector<Done> waiting;
    {
      const Lock lock(mutex_);
      if (error_) return;
      for (const std::size_t index : indices) {
        GivenGradient& gradient = steps_.front().given[index];
        gradient.has_mean = true;
        for (Done& done : gradient.waiting) waiting.push_back(std::move(done));
        gradient.waiting.clear();
      }
    }
    for (const Done& done : waiting) done(nullptr);
  }

  void on_end(std::exception_ptr error) {
    if (error) return fail(std::move(error));
    Step ended;
    {
      const Lock lock(mutex_);
      if (error_) return;
      ended = std::move(steps_.front());
      steps_.pop_front();
      ++first_;
      is_open_ = false;
    }
    for (const GivenGradient& gradient : ended.given) {
      if (gradient.release) gradient.release();
    }
    open_next();
  }

  // Hands on what arrived of the next step before its turn.
  void open_next() {
    for (;;) {
      std::vector<std::pair<std::size_t, void*>> queued;
      {
        const Lock lock(mutex_);
        if (error_ || steps_.empty()) return;
        Step& step = steps_.front();
        for (const std::size_t index : step.queued) queued.emplace_back(index, step.given[index].data);
        step.queued.clear();
        if (queued.empty()) {
          is_open_ = true;
          if (!step.is_finished || std::exchange(step.is_ending, true)) return;
        }
      }
      if (queued.empty()) return end_backward();
      for (const auto& [index, data] : queued) hand_on(index, data);
    }
  }

  // The first error counts. All waiting callers get it, here and on the other ranks.
  void fail(std::exception_ptr error) {
    std::deque<Step> steps;
    {
      const Lock lock(mutex_);
      if (error_) return;
      error_ = error;
      steps.swap(steps_);
    }
    reducer_.abort(text_of(error));
    for (const Step& step : steps) {
      for (const GivenGradient& gradient : step.given) {
        for (const Done& done : gradient.waiting) done(error);
        if (gradient.release) gradient.release();
      }
    }
  }

  const std::string prefix_;
  const std::vector<std::string> names_;
  GradientReducer reducer_;

  Mutex mutex_;                                       // nothing is called under it
  std::deque<Step> steps_ SMDP_GUARDED_BY(mutex_);    // the first one is in the reducer
  std::uint64_t first_ SMDP_GUARDED_BY(mutex_) = 1;   // its number
  bool is_open_ SMDP_GUARDED_BY(mutex_) = false;      // the first step's gradients go to the reducer at once
  std::exception_ptr error_ SMDP_GUARDED_BY(mutex_);  // the first error
};

GradientSteps::GradientSteps(Group& group, std::vector<Gradient> gradients, const GradientReducerOptions& options)
    : impl_(std::make_shared<Impl>(group, std::move(gradients), options)) {
  impl_->id = Directory<Impl>::instance().add(impl_);
}
GradientSteps::GradientSteps(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::uint64_t GradientSteps::id() const { return impl_->id; }

std::unique_ptr<GradientSteps> GradientSteps::find(std::uint64_t id) {
  std::shared_ptr<Impl> impl = Directory<Impl>::instance().find(id);
  return impl ? std::unique_ptr<GradientSteps>(new GradientSteps(std::move(impl))) : nullptr;
}

std::uint64_t GradientSteps::begin() { return impl_->begin(); }
void GradientSteps::ready(std::uint64_t step, std::size_t index, void* data, std::function<void()> release) {
  impl_->ready(step, index, data, std::move(release));
}
void GradientSteps::mean(std::uint64_t step, std::size_t index, std::function<void(std::exception_ptr)> done) {
  impl_->mean(step, index, std::move(done));
}
void GradientSteps::finish(std::uint64_t step) { impl_->finish(step); }
void GradientSteps::leave(std::uint64_t step) { impl_->leave(step); }
std::string GradientSteps::explain() const { return impl_->reducer().explain(); }
const std::string& GradientSteps::group_name() const { return impl_->reducer().group_name(); }
void GradientSteps::abort(const std::string& reason) { impl_->abort(reason); }

}  // namespace smdp
