#include "fusion/reducer_steps.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>

#include "common/failure.h"
#include "fusion/part_wait.h"
#include "fusion/registration.h"
#include "observability/counters.h"
#include "reduce/reduce.h"
#include "smdp/error.h"

namespace smdp {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

GradientReducer::Impl::Impl(Group& base, std::vector<Gradient> gradients, const GradientReducerOptions& options)
    : gradients_(std::move(gradients)),
      options_(options),
      devices_(std::make_unique<DeviceGradients>(
          [this](const auto& indices, const std::exception_ptr& error) { from_device(indices, error); })) {
  check_gradients(base, gradients_, options_);
  const int streams = base.streams_to_try();
  group_ = base.twin("gradients", streams, purpose_of(gradients_, options), options.replaced);
  try {
    prepare(streams);
  } catch (const std::exception& error) {
    group_->shutdown(without_tag(error.what()));  // the other ranks get the reason
    throw;
  }
}

GradientReducer::Impl::~Impl() {
  group_->shutdown();
  devices_.reset();  // first, because their threads fill buffers
}

void GradientReducer::Impl::ready(std::size_t index, void* data, bool is_used) {
  check_gradient(index, data);
  const SharedLock filling(fills_);
  Lock lock(mutex_);
  FusionBuffer& buffer = claim(index, is_used);
  targets_[index] = {buffer.plan.is_alone || is_sharded() ? nullptr : data, nullptr};
  lock.unlock();  // copying one gradient must not hold up another
  fill(buffer, index, data);
  lock.lock();
  came(buffer);
  flush_complete(buffer);
  send_filled();
}

void GradientReducer::Impl::ready(std::size_t index, void* data, int device, void* event, bool is_used) {
  check_gradient(index, data);
  if (is_sharded()) throw_device_has_no_shards(index, device);
  const SharedLock filling(fills_);
  Lock lock(mutex_);
  DeviceStaging& staging = devices_->at(device);
  FusionBuffer& buffer = claim(index, is_used);
  const Gradient& gradient = gradients_[index];
  or_abort([&] {
    if (!buffer.memory) buffer.memory = allocate_zeros(gradient.count * size_of(gradient.dtype));
    staging.pin(buffer);
    targets_[index] = {data, &staging};
  });
  lock.unlock();
  or_abort(
      [&] { staging.gather(number_of(buffer), buffer, {index, gradient, plan_->place(index).offset}, data, event); });
  lock.lock();
  flush_complete(buffer);
}

void GradientReducer::Impl::finish() {
  const Lock lock(mutex_);
  begin_step();
  if (is_finished_) {
    rethrow_failure();
    throw Error("[smdp] finish() was called twice in one step.");
  }
  for (std::size_t index = 0; index < gradients_.size(); ++index) {
    if (used_[index] == kUsed) notes_.put_used(index);
    if (used_[index] != kAbsent) continue;
    FusionBuffer& buffer = buffers_[plan_->place(index).buffer];
    fill(buffer, index, nullptr);
    came(buffer);
    flush_complete(buffer);
  }
  const auto rank = static_cast<std::size_t>(group_->rank());
  if (steps_ == 0 && rank == 0) notes_.put_order(seen_);
  const double computed = seconds_computed(Clock::now());
  notes_.put(StepNotes::kComputeTime, rank,
             steps_ == 0 ? 0U : static_cast<std::uint32_t>(std::clamp(1e6 * computed, 0.0, 4e9)));
  notes_.put(StepNotes::kOverInTime, rank, waits_for_one_ ? 1 + batch_->buffers_over() : 0);
  plan_->tell(notes_);
  is_finished_ = true;
  send_filled();
  batch_->handle()->hurry();  // backward has ended
  plan_->begin_look(steps_);
}

void GradientReducer::Impl::or_over_ranks(std::uint8_t* flags, std::size_t count,
                                          const std::function<bool()>& interrupted) {
  const std::array shape{static_cast<std::int64_t>(count)};
  Call call;
  call.interrupted = interrupted;
  group_->all_reduce(flags, flags, shape, DType::kUint8, ReduceOp::kMax, 1.0, call);
}

Group::Handle GradientReducer::Impl::all_reduce_sparse(std::size_t index, std::shared_ptr<SparseSum> sum) {
  check_index(index);
  check_finished();
  Call call;
  call.async = true;
  call.label = [text = names_of(gradients_[index], gradients_[index])] { return text; };
  const double factor = options_.factor;
  const ReduceOp op = factor == 0 ? ReduceOp::kAvg : factor == 1 ? ReduceOp::kSum : ReduceOp::kPremulSum;
  return group_->all_reduce_sparse(std::move(sum), op, factor, call);
}

void GradientReducer::Impl::wait(std::size_t index, const CudaStream* stream,
                                 const std::function<bool()>& interrupted) {
  check_index(index);
  check_finished(stream);
  waits_for_one_ = true;
  FusionBuffer& buffer = buffers_[plan_->place(index).buffer];
  const TimePoint begin = Clock::now();
  const bool is_early = !buffer.done->done();
  or_settle([&] {
    settle(*buffer.done, interrupted);
    if (!write_back_unless_aborted(buffer, {&index, 1})) rethrow_failure();
    or_abort([&] { devices_->order(stream); });
  });
  if (is_early) trace_wait(begin);
}

void GradientReducer::Impl::wait(const CudaStream* stream, const std::function<bool()>& interrupted) {
  check_finished(stream);
  const TimePoint begin = Clock::now();
  or_settle([&] {
    for (FusionBuffer& buffer : buffers_) {
      settle(*buffer.done, interrupted);
      if (!write_back_unless_aborted(buffer, buffer.plan.members)) rethrow_failure();
    }
    settle(*batch_->handle(), interrupted);
    batch_->handle()->wait();  // throws its error
    if (const Group::Handle sample = plan_->last_sample()) {
      settle(*sample, interrupted);
      sample->wait();
    }
    or_abort([&] { devices_->order(stream); });
    if (is_sharded()) agree_on_finite(interrupted);
  });
  end_step(begin);
}

void GradientReducer::Impl::then(std::function<void(const std::vector<std::size_t>&)> part,
                                 std::function<void(std::exception_ptr)> end) {
  check_finished();
  check_not_sharded("then()");
  part_error_ = nullptr;
  for (FusionBuffer& buffer : buffers_) {
    // After a failure this may run when `end` has run and the reducer is gone.
    buffer.done->then([this, &buffer, part, done = buffer.done] {
      if (done->error() || part_error_) return;
      try {
        if (!write_back_unless_aborted(buffer, buffer.plan.members)) return;
        or_abort([&] { devices_->order(nullptr); });  // the caller may read it at once
      } catch (...) {
        part_error_ = std::current_exception();
        return;
      }
      part(buffer.plan.members);
    });
  }
  const Group::Handle sample = plan_->last_sample();
  const Group::Handle handle = batch_->handle();
  (sample ? sample : handle)->then([this, handle, sample, end = std::move(end), finished = Clock::now()] {
    std::exception_ptr error = handle->error();
    if (!error && sample) error = sample->error();
    if (!error) error = part_error_;
    if (!error) {
      // No thread was blocked, but there was nothing left to compute either.
      add_exposed(std::chrono::duration<double>(std::max(handle->ended(), finished) - finished).count());
      end_step(finished);
    }
    // Completes them, so that nothing waits for them and their callbacks are freed.
    for (const FusionBuffer& buffer : buffers_) buffer.done->complete(error);
    end(error);
  });
}

bool GradientReducer::Impl::is_used(std::size_t index) const {
  check_index(index);
  return notes_.is_used(index);
}

void GradientReducer::Impl::read(std::size_t index, void* out) const {
  check_index(index);
  check_not_sharded("read()");
  const Gradient& gradient = gradients_[index];
  const Place& place = plan_->place(index);
  const FusionBuffer& buffer = buffers_[place.buffer];
  if (buffer.data == nullptr) throw Error("[smdp] gradient '" + gradient.name + "' was read before the first step.");
  std::memcpy(out, buffer.place(place.offset), gradient.count * size_of(gradient.dtype));
}

void GradientReducer::Impl::abort(const std::string& reason) {
  group_->abort(reason);
  Group::Handle handle;
  {
    const Lock lock(mutex_);
    is_aborted_ = true;
    if (batch_) handle = batch_->handle();
  }
  const ExclusiveLock filled(fills_);
  while (handle && !handle->wait_for(kStepCheck)) {
  }
  const Lock lock(mutex_);
  devices_->settle();
}

void GradientReducer::Impl::prepare(int streams) {
  factor_ = options_.factor != 0 ? options_.factor : 1.0 / group_->size();
  check_same_gradients(*group_, gradients_, options_);
  plan_ = std::make_unique<FusionPlan>(*group_, gradients_, options_, streams > 1);
  kept_ = std::make_unique<KeptValues>(gradients_, buffers_, *plan_, sharded_);
  batch_ = std::make_unique<StepBatch>(*group_, gradients_, *plan_, buffers_, notes_, options_.shards);
  take_buffers();
  if (!kept_->has_state() && !is_sharded()) plan_->look_again();
  targets_.resize(gradients_.size());
  const Lock lock(mutex_);
  used_.resize(gradients_.size());
}

void GradientReducer::Impl::end_step(TimePoint begin) {
  for (FusionBuffer& buffer : buffers_) {
    if (trace::is_on()) buffer.write_trace(number_of(buffer), steps_, label_of(buffer, gradients_));
  }
  stats_.bytes += plan_->layout().bytes();
  stats_.last_exposed_seconds = stats_.exposed_seconds - exposed_before_;
  ++stats_.steps;
  trace_wait(begin);
  count_step(plan_->layout().bytes(), stats_.last_exposed_seconds, compute_seconds(notes_, *group_));
  plan_->end_look();
  kept_->end_step(notes_);
  ++steps_;
  last_wait_ = Clock::now();
  const Lock lock(mutex_);
  is_in_step_ = false;
}

void GradientReducer::Impl::trace_wait(TimePoint begin) {
  if (!trace::is_on()) return;
  const TimePoint last = std::exchange(last_wait_, Clock::now());
  trace_step(group_->name(), steps_, last, begin, last_wait_);
}

void GradientReducer::Impl::take_buffers() {
  devices_->forget_buffers();
  buffers_ = make_buffers(plan_->layout(), options_, group_->hosts().size());
  batch_->reset();
  if (is_sharded()) sharded_ = smdp::sharded_buffers(*group_, gradients_, *plan_, buffers_, spans_hosts());
}

void GradientReducer::Impl::begin_step() {
  if (is_in_step_) return;
  or_abort([&] { devices_->order(nullptr); });  // buffers are about to be refilled
  // What compression has kept of the first step depends on its layout.
  const bool has_order = steps_ == 1 && !has_new_layout_ && !kept_->has_state() && !is_sharded();
  if (has_order) plan_->reorder(notes_.order());
  has_new_layout_ = has_new_layout_ || has_order;
  if (steps_ != 0 && (plan_->take_news(notes_) || has_order)) {
    take_buffers();
  } else if (steps_ != 0) {
    batch_->reorder(notes_.told(StepNotes::kOverInTime));
  }
  exposed_before_ = stats_.exposed_seconds;
  is_in_step_ = true;
  is_finished_ = false;
  std::fill(used_.begin(), used_.end(), std::uint8_t{0});
  std::fill(targets_.begin(), targets_.end(), Target{});
  for (FusionBuffer& buffer : buffers_) {
    buffer.missing = buffer.coming = buffer.plan.members.size();
    buffer.first = {};
    buffer.returned = {};
    buffer.is_finite.reset();
    buffer.own = nullptr;
  }
  notes_.reset(gradients_.size(), static_cast<std::size_t>(group_->size()), steps_ == 0);
  batch_->begin([this](const FusionBuffer& buffer) { return reduction_of(buffer); });
}

void GradientReducer::Impl::fill(FusionBuffer& buffer, std::size_t index, void* data) const {
  buffer.fill(gradients_[index], plan_->place(index).offset, data, divides_late(buffer) ? 1 : factor_);
}

void GradientReducer::Impl::came(FusionBuffer& buffer) {
  if (--buffer.missing == 0 && trace::is_on()) buffer.full = Clock::now();
}

bool GradientReducer::Impl::divides_late(const FusionBuffer& buffer) const {
  const DType dtype = buffer.plan.dtype;
  const bool is_wide = dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kBfloat16;
  return buffer.plan.is_alone && is_wide && !buffer.codec && options_.factor == 0 &&
         std::has_single_bit(static_cast<unsigned>(group_->size()));
}

Reduction GradientReducer::Impl::reduction_of(const FusionBuffer& buffer) const {
  if (!divides_late(buffer)) return {buffer.plan.dtype, ReduceOp::kSum};
  return {buffer.plan.dtype, ReduceOp::kAvg, static_cast<std::uint32_t>(group_->size())};
}

void GradientReducer::Impl::settle(Operation& part, const std::function<bool()>& interrupted) {
  const auto start = Clock::now();
  wait_for_part(part, batch_->handle(), *group_, interrupted);
  add_exposed(std::chrono::duration<double>(Clock::now() - start).count());
}

void GradientReducer::Impl::add_exposed(double seconds) {
  stats_.exposed_seconds += seconds;
  count_exposed(seconds);
}

bool GradientReducer::Impl::write_back_unless_aborted(FusionBuffer& buffer, std::span<const std::size_t> indices) {
  const SharedLock writing(fills_);
  {
    const Lock lock(mutex_);
    if (is_aborted_) return false;
  }
  kept_->look_at(buffer);
  bool is_new = buffer.returned == TimePoint{};
  for (const std::size_t index : indices) is_new = write_back(index) || is_new;
  if (is_new && trace::is_on()) buffer.returned = Clock::now();
  return true;
}

bool GradientReducer::Impl::write_back(std::size_t index) {
  Target& target = targets_[index];
  if (target.data == nullptr) return false;
  if (target.staging == nullptr) {
    read(index, target.data);
  } else {
    const Place& place = plan_->place(index);
    or_abort(
        [&] { target.staging->store(target.data, buffers_[place.buffer].place(place.offset), gradients_[index]); });
  }
  target = {};
  return true;
}

FusionBuffer& GradientReducer::Impl::claim(std::size_t index, bool is_used) {
  if (is_aborted_) {
    rethrow_failure();  // with the reason
    throw ClosedError("[smdp] the gradients' reducer was aborted.");
  }
  begin_step();
  if (is_finished_) {
    rethrow_failure();
    throw Error("[smdp] gradient '" + gradients_[index].name +
                "' was ready after finish() had ended the step. Call wait() before the next step.");
  }
  if (used_[index] != 0) {
    throw Error("[smdp] gradient '" + gradients_[index].name +
                "' was ready twice in one step. Was backward called twice without waiting for the reducer?");
  }
  if (steps_ == 0) seen_.push_back(index);
  FusionBuffer& buffer = buffers_[plan_->place(index).buffer];
  used_[index] = is_used || (buffer.codec && buffer.codec->has_state()) ? kUsed : kLeftOver;
  if (trace::is_on() && buffer.first == TimePoint{}) buffer.first = Clock::now();
  return buffer;
}

void GradientReducer::Impl::flush_complete(FusionBuffer& buffer) {
  if (--buffer.coming != 0) return;
  or_abort([&] { devices_->flush(number_of(buffer)); });
}

void GradientReducer::Impl::or_abort(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    group_->abort(without_tag(error.what()));
    throw;
  }
}

void GradientReducer::Impl::or_settle(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    group_->abort(without_tag(Failure::of(std::current_exception()).text));
    const Lock lock(mutex_);
    devices_->settle();
    throw;
  }
}

void GradientReducer::Impl::from_device(const std::vector<std::size_t>& indices, const std::exception_ptr& error) {
  const SharedLock filling(fills_);
  if (error) return group_->abort(without_tag(Failure::of(error).text));
  Lock lock(mutex_);
  if (is_aborted_) return;
  FusionBuffer& buffer = buffers_[plan_->place(indices.front()).buffer];
  lock.unlock();
  for (const std::size_t index : indices) {
    std::byte* base = buffer.memory.get();
    fill(buffer, index, base + plan_->place(index).offset * size_of(buffer.plan.dtype));
  }
  lock.lock();
  for (std::size_t i = 0; i < indices.size(); ++i) came(buffer);
  try {
    send_filled();
  } catch (const std::exception& caught) {
    group_->abort(without_tag(caught.what()));
  }
}

void GradientReducer::Impl::check_gradient(std::size_t index, const void* data) const {
  check_index(index);
  if (data == nullptr && gradients_[index].count != 0)
    throw InvalidArgument("[smdp] the pointer of a gradient is null.");
}

void GradientReducer::Impl::check_index(std::size_t index) const {
  if (index < gradients_.size()) return;
  throw InvalidArgument("[smdp] there is no gradient " + std::to_string(index) + "; there are " +
                        std::to_string(gradients_.size()) + ".");
}

void GradientReducer::Impl::rethrow_failure() const {
  if (const std::exception_ptr error = group_->error()) std::rethrow_exception(error);
}

void GradientReducer::Impl::check_finished(const CudaStream* stream) {
  {
    const Lock lock(mutex_);
    if (stream != nullptr) devices_->at(stream->device);
    if (is_in_step_ && is_finished_ && batch_->handle()) return;  // null: finish() itself threw
  }
  rethrow_failure();
  throw Error("[smdp] wait() was called before finish(). Call finish() at the end of backward, then wait().");
}

}  // namespace smdp
