#include "smdp/gradient_reducer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <shared_mutex>
#include <span>
#include <utility>

#include "collectives/batch.h"
#include "collectives/chunks.h"
#include "common/failure.h"
#include "common/log.h"
#include "common/thread_wait.h"
#include "fusion/device_gradients.h"
#include "fusion/explanation.h"
#include "fusion/finite.h"
#include "fusion/fusion_buffer.h"
#include "fusion/late_means.h"
#include "fusion/layout.h"
#include "fusion/registration.h"
#include "fusion/second_look.h"
#include "fusion/sending_order.h"
#include "fusion/step_notes.h"
#include "observability/counters.h"
#include "reduce/reduce.h"
#include "smdp/error.h"

namespace smdp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kInterruptionCheck{200};

constexpr std::size_t kLate = GradientReducer::kKeptParts - 1;  // of what is kept

}  // namespace

class GradientReducer::Impl {
 public:
  Impl(Group& base, std::vector<Gradient> gradients, const GradientReducerOptions& options)
      : gradients_(std::move(gradients)),
        options_(options),
        late_(gradients_.size()),
        devices_(std::make_unique<DeviceGradients>(
            [this](const auto& indices, const std::exception_ptr& error) { from_device(indices, error); })) {
    check_gradients(base, gradients_, options_);
    const int streams = base.streams_to_try();
    group_ = base.twin("gradients", streams, purpose_of(gradients_, options), options.replaced);
    try {
      prepare(streams);
    } catch (const std::exception& error) {
      group_->shutdown(without_tag(error.what()));  // the others hear why
      throw;
    }
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  // What is in flight must end before its buffers go.
  ~Impl() {
    group_->shutdown();
    devices_.reset();  // their threads fill buffers
  }

  void ready(std::size_t index, void* data, bool is_used) {
    check_gradient(index, data);
    const std::shared_lock filling(fills_);
    std::unique_lock lock(mutex_);
    FusionBuffer& buffer = claim(index, is_used);
    targets_[index] = {buffer.plan.is_alone ? nullptr : data, nullptr};
    lock.unlock();  // the copy of one gradient must not hold up another's
    fill(buffer, index, data);
    lock.lock();
    came(buffer);
    flush_complete(buffer);
    send_filled();
  }

  void ready(std::size_t index, void* data, int device, void* event, bool is_used) {
    check_gradient(index, data);
    const std::shared_lock filling(fills_);
    std::unique_lock lock(mutex_);
    DeviceStaging& staging = devices_->at(device);
    FusionBuffer& buffer = claim(index, is_used);
    const Gradient& gradient = gradients_[index];
    or_abort([&] {
      if (!buffer.memory) buffer.memory = allocate_zeros(gradient.count * size_of(gradient.dtype));
      staging.pin(buffer);
      targets_[index] = {data, &staging};
      lock.unlock();
      staging.gather(number_of(buffer), buffer, {index, gradient, layout_.places[index].offset}, data, event);
      lock.lock();
    });
    flush_complete(buffer);
  }

  void finish() {
    const std::lock_guard lock(mutex_);
    begin_step();
    if (is_finished_) {
      rethrow_failure();
      throw Error("[smdp] finish() was called twice in one step.");
    }
    for (std::size_t index = 0; index < gradients_.size(); ++index) {
      if (used_[index] == kUsed) notes_.put_used(index);
      if (used_[index] != kAbsent) continue;
      FusionBuffer& buffer = buffers_[layout_.places[index].buffer];
      fill(buffer, index, nullptr);
      came(buffer);
      flush_complete(buffer);
    }
    const auto rank = static_cast<std::size_t>(group_->rank());
    if (steps_ == 0 && rank == 0) notes_.put_order(order_of_first_step());
    const double computed = seconds_computed(Clock::now());
    notes_.put(StepNotes::kComputeTime, rank,
               steps_ == 0 ? 0U : static_cast<std::uint32_t>(std::clamp(1e6 * computed, 0.0, 4e9)));
    notes_.put(StepNotes::kOverInTime, rank, waits_for_one_ ? 1 + buffers_over() : 0);
    if (second_look_ && rank == 0) {
      if (const auto by = second_look_->news()) {
        notes_.put(StepNotes::kShorterLatency, rank, by->latency);
        notes_.put(StepNotes::kShorterTransfer, rank, by->transfer);
        notes_.put(StepNotes::kShorterSum, rank, by->sum);
      }
    }
    is_finished_ = true;
    send_filled();
    handle_->hurry();  // backward is over
    if (second_look_ && SecondLook::is_due(steps_)) second_look_->begin(*group_);
  }

  void or_over_ranks(std::uint8_t* flags, std::size_t count, const std::function<bool()>& interrupted) {
    const std::array shape{static_cast<std::int64_t>(count)};
    Call call;
    call.interrupted = interrupted;
    group_->all_reduce(flags, flags, shape, DType::kUint8, ReduceOp::kMax, 1.0, call);
  }

  Group::Handle all_reduce_sparse(std::size_t index, std::shared_ptr<SparseSum> sum) {
    check_index(index);
    check_finished();
    Call call;
    call.async = true;
    call.label = [text = names_of(gradients_[index], gradients_[index])] { return text; };
    const double factor = options_.factor;
    const ReduceOp op = factor == 0 ? ReduceOp::kAvg : factor == 1 ? ReduceOp::kSum : ReduceOp::kPremulSum;
    return group_->all_reduce_sparse(std::move(sum), op, factor, call);
  }

  // stream: null blocks until what is copied back to devices is there.
  void wait(std::size_t index, const CudaStream* stream, const std::function<bool()>& interrupted) {
    check_index(index);
    check_finished(stream);
    waits_for_one_ = true;
    FusionBuffer& buffer = buffers_[layout_.places[index].buffer];
    const TimePoint begin = Clock::now();
    const bool is_early = !buffer.done->done();
    or_settle([&] {
      settle(*buffer.done, interrupted);
      if (!write_back_unless_aborted(buffer, {&index, 1})) rethrow_failure();
      or_abort([&] { devices_->order(stream); });
    });
    if (is_early) trace_wait(begin);
  }

  void wait(const CudaStream* stream, const std::function<bool()>& interrupted) {
    check_finished(stream);
    const TimePoint begin = Clock::now();
    or_settle([&] {
      for (FusionBuffer& buffer : buffers_) {
        settle(*buffer.done, interrupted);
        if (!write_back_unless_aborted(buffer, buffer.plan.members)) rethrow_failure();
      }
      settle(*handle_, interrupted);
      handle_->wait();  // throws its error
      if (const Group::Handle sample = last_sample()) {
        settle(*sample, interrupted);
        sample->wait();
      }
      or_abort([&] { devices_->order(stream); });
    });
    end_step(begin);
  }

  void then(std::function<void(const std::vector<std::size_t>&)> part, std::function<void(std::exception_ptr)> end) {
    check_finished();
    part_error_ = nullptr;
    for (FusionBuffer& buffer : buffers_) {
      // After a failure it may run when `end` has, and the reducer is gone.
      buffer.done->then([this, &buffer, part, done = buffer.done] {
        if (done->error() || part_error_) return;
        try {
          if (!write_back_unless_aborted(buffer, buffer.plan.members)) return;
          or_abort([&] { devices_->order(nullptr); });  // whoever is told may look at once
        } catch (...) {
          part_error_ = std::current_exception();
          return;
        }
        part(buffer.plan.members);
      });
    }
    const Group::Handle sample = last_sample();
    (sample ? sample : handle_)->then([this, sample, end = std::move(end), finished = Clock::now()] {
      std::exception_ptr error = handle_->error();
      if (!error && sample) error = sample->error();
      if (!error) error = part_error_;
      if (!error) {
        // Nobody has blocked, but nothing was left to compute either.
        add_exposed(std::chrono::duration<double>(std::max(handle_->ended(), finished) - finished).count());
        end_step(finished);
      }
      // So that nothing waits for them any more, and holds what it captured.
      for (const FusionBuffer& buffer : buffers_) buffer.done->complete(error);
      end(error);
    });
  }

  bool is_used(std::size_t index) const {
    check_index(index);
    return notes_.is_used(index);
  }

  void read(std::size_t index, void* out) const {
    check_index(index);
    const Gradient& gradient = gradients_[index];
    const Place& place = layout_.places[index];
    const FusionBuffer& buffer = buffers_[place.buffer];
    if (buffer.data == nullptr) throw Error("[smdp] gradient '" + gradient.name + "' was read before the first step.");
    std::memcpy(out, buffer.place(place.offset), gradient.count * size_of(gradient.dtype));
  }

  void abort(const std::string& reason) {
    group_->abort(reason);
    Group::Handle handle;
    {
      const std::lock_guard lock(mutex_);
      is_aborted_ = true;
      handle = handle_;
    }
    const std::unique_lock filled(fills_);
    while (handle && !handle->wait_for(kInterruptionCheck)) {
    }
    const std::lock_guard lock(mutex_);
    devices_->settle();
  }

  void rescale(double factor) {
    const float scale = checked_rescale(factor);
    for (FusionBuffer& buffer : buffers_) {
      if (buffer.codec) buffer.codec->rescale(scale);
    }
    late_.rescale(scale);
  }

  bool copy_kept(std::size_t index, std::size_t part, float* out) {
    check_index(index);
    const float* values = kept(index, part);
    const std::size_t count = gradients_[index].count;
    if (values == nullptr || std::all_of(values, values + count, [](float value) { return value == 0; })) return false;
    std::copy(values, values + count, out);
    return true;
  }

  void set_kept(std::size_t index, std::size_t part, const float* values) {
    check_index(index);
    const std::size_t count = gradients_[index].count;
    if (part == kLate && keeps_residuals()) late_[index].assign(count, 0);
    if (float* to = kept(index, part)) std::copy(values, values + count, to);
  }

  Stats stats() const { return stats_; }
  const std::string& group_name() const { return group_->name(); }

  std::string explain() const {
    // As begin_batch() lists it.
    const auto ranks = static_cast<std::size_t>(group_->size());
    const std::size_t batch_bytes = layout_.bytes() + gradients_.size() + StepNotes::size_of_told(ranks);
    return smdp::explain(
        layout_, {options_.compression, options_.buffer_bytes, group_->hosts().size(), lanes_of(group_->hosts()), ranks,
                  parse_algorithm(group_->batch_algorithm(batch_bytes)), measured_, sizes_, exchange_});
  }

 private:
  // Agrees with the other ranks on how gradients travel, and takes the memory for them.
  void prepare(int streams) {
    factor_ = options_.factor != 0 ? options_.factor : 1.0 / group_->size();
    check_same_gradients(*group_, gradients_, options_);
    measured_ = measure(*group_, streams > 1);
    choose_sizes();
    order_.resize(gradients_.size());
    std::iota(order_.rbegin(), order_.rend(), std::size_t{0});
    lay_out_by(order_);
    used_.resize(gradients_.size());
    targets_.resize(gradients_.size());
    if (group_->size() > 1 && !keeps_residuals()) second_look_.emplace(*group_, measured_);
  }

  void choose_sizes() {
    const std::size_t hosts = group_->hosts().size();
    const std::size_t lanes = lanes_of(group_->hosts());
    sizes_ = cost::fusion_sizes(has_fixed_buffers(options_.compression) ? cost::Measured{} : measured_, hosts, lanes,
                                options_.buffer_bytes);
    exchange_ = cost::exchange_sizes(measured_, hosts, lanes);
  }

  // Of a step that takes a second look; null in others.
  Group::Handle last_sample() const { return second_look_ ? second_look_->last() : nullptr; }

  // What rank 0 has told in the step before, if it has. Under mutex_.
  bool takes_news() {
    if (steps_ == 0) return false;
    const auto told = [this](StepNotes::Told what) { return notes_.told(what).front(); };
    const Shortened by{told(StepNotes::kShorterLatency), told(StepNotes::kShorterTransfer),
                       told(StepNotes::kShorterSum)};
    if (by.latency == 0) return false;
    measured_ = corrected(measured_, by);
    choose_sizes();
    if (is_logged(LogLevel::kInfo) && group_->rank() == 0) {
      log(LogLevel::kInfo, group_->name() +
                               ": the look at the network before the first step was disturbed; with new "
                               "figures fusion buffers are of about " +
                               std::to_string(sizes_.usual >> 10) + " KiB.");
    }
    return true;
  }

  void end_step(TimePoint begin) {
    // A gradient of any dtype makes whoever scales the loss skip the step.
    bool counts = true;
    for (FusionBuffer& buffer : buffers_) {
      if (trace::is_on()) buffer.write_trace(number_of(buffer), steps_, label_of(buffer));
      counts = counts && buffer.is_finite.value_or(true);
    }
    for (FusionBuffer& buffer : buffers_) {
      if (buffer.codec) buffer.codec->end_step(counts);
    }
    stats_.bytes += layout_.bytes();
    stats_.last_exposed_seconds = stats_.exposed_seconds - exposed_before_;
    ++stats_.steps;
    trace_wait(begin);
    count_step(layout_.bytes(), stats_.last_exposed_seconds, compute_seconds(notes_, *group_));
    if (last_sample()) second_look_->end();
    keep_late(counts);
    ++steps_;
    is_in_step_ = false;
    last_wait_ = Clock::now();
  }

  // Since the last one, the framework computes.
  void trace_wait(TimePoint begin) {
    if (!trace::is_on()) return;
    const TimePoint last = std::exchange(last_wait_, Clock::now());
    trace_step(group_->name(), steps_, last, begin, last_wait_);
  }

  void lay_out_by(const std::vector<std::size_t>& order) {
    layout_ = smdp::lay_out(gradients_, order, sizes_, std::max(options_.buffer_bytes, sizes_.usual));
    kept_ = layout_.buffers.size();
    sequence_ = sending_order(layout_.buffers, kept_);
    buffers_.clear();
    for (const PlannedBuffer& plan : layout_.buffers) {
      FusionBuffer buffer;
      buffer.plan = plan;
      if (!plan.is_alone) {
        buffer.memory = allocate_zeros(plan.count * size_of(plan.dtype));
        buffer.data = buffer.memory.get();
      }
      if (plan.dtype == DType::kFloat32 && group_->hosts().size() > 1) {
        buffer.codec = make_codec(options_, plan.count);
      }
      buffers_.push_back(std::move(buffer));
    }
    if (is_logged(LogLevel::kDebug)) log(LogLevel::kDebug, explain());
  }

  // Under mutex_.
  void begin_step() {
    if (is_in_step_) return;
    or_abort([&] { devices_->order(nullptr); });  // buffers are filled anew
    // What compression has kept of the first step belongs to the layout that it has.
    const bool has_order = steps_ == 1 && !has_new_layout_ && !keeps_residuals();
    if (has_order) {
      const std::vector<std::uint32_t> order = notes_.order();
      order_.assign(order.begin(), order.end());
      has_new_layout_ = true;
    }
    if (takes_news() || has_order) {
      devices_->forget_buffers();
      lay_out_by(order_);
    } else if (steps_ != 0) {
      const std::vector<std::uint32_t> over = notes_.told(StepNotes::kOverInTime);
      const std::uint32_t most = *std::max_element(over.begin(), over.end());
      kept_ = most == 0 ? layout_.buffers.size() : next_kept(kept_, most - 1, layout_.buffers.size());
      sequence_ = sending_order(layout_.buffers, kept_);
    }
    exposed_before_ = stats_.exposed_seconds;
    is_in_step_ = true;
    is_finished_ = false;
    next_ = 0;
    std::fill(used_.begin(), used_.end(), std::uint8_t{0});
    std::fill(targets_.begin(), targets_.end(), Target{});
    for (FusionBuffer& buffer : buffers_) {
      buffer.missing = buffer.coming = buffer.plan.members.size();
      buffer.first = {};
      buffer.returned = {};
      buffer.is_finite.reset();
    }
    begin_batch();
  }

  // Null: there is none.
  float* kept(std::size_t index, std::size_t part) {
    if (part == kLate) return late_[index].empty() ? nullptr : late_[index].data();
    const Place& place = layout_.places[index];
    const FusionBuffer& buffer = buffers_[place.buffer];
    const std::vector<Residual*> parts = buffer.codec ? buffer.codec->kept() : std::vector<Residual*>();
    return part < parts.size() ? parts[part]->now(place.offset) : nullptr;
  }

  bool keeps_residuals() const {
    return std::any_of(buffers_.begin(), buffers_.end(),
                       [](const FusionBuffer& buffer) { return buffer.codec && buffer.codec->has_state(); });
  }

  // Before anyone is told that its sum is there: a gradient's own memory may be gone afterwards.
  void look_at(FusionBuffer& buffer) {
    if (buffer.is_finite || !keeps_residuals()) return;
    buffer.is_finite = are_finite(buffer.data, buffer.plan.count, buffer.plan.dtype);
    if (!buffer.codec) return;
    for (const std::size_t index : buffer.plan.members) {
      late_.add_to(index, reinterpret_cast<float*>(buffer.place(layout_.places[index].offset)));
    }
  }

  // data: null for one that is not there.
  void fill(FusionBuffer& buffer, std::size_t index, void* data) const {
    buffer.fill(gradients_[index], layout_.places[index].offset, data, divides_late(buffer) ? 1 : factor_);
  }

  // counts: of a step that does not, nothing has happened.
  void keep_late(bool counts) {
    for (std::size_t index = 0; counts && index < gradients_.size(); ++index) {
      const Place& place = layout_.places[index];
      const FusionBuffer& buffer = buffers_[place.buffer];
      if (!buffer.codec || !buffer.codec->has_state()) continue;
      const auto* mean = reinterpret_cast<const float*>(buffer.place(place.offset));
      late_.keep(index, mean, gradients_[index].count, notes_.is_used(index));
    }
  }

  // A gradient has filled its place. Under mutex_.
  static void came(FusionBuffer& buffer) {
    if (--buffer.missing == 0 && trace::is_on()) buffer.full = Clock::now();
  }

  // Tells the operation of this step what is filled, in an order that is the same on all ranks. Under mutex_.
  void send_filled() {
    const std::size_t before = next_;
    for (; next_ < sequence_.size(); ++next_) {
      FusionBuffer& buffer = buffers_[sequence_[next_]];
      if (buffer.missing != 0) break;
      batch_->place(next_, buffer.data);
    }
    if (next_ == before && !is_finished_) return;
    const bool is_all = is_finished_ && next_ == sequence_.size();
    batch_->fill(next_ + (is_all ? 1 : 0));
    if (!handle_) {
      Call call;
      call.async = true;
      call.label = [this, batch = batch_] { return label_of(*batch); };
      handle_ = group_->all_reduce_batch(batch_, call);
    } else {
      group_->wake();
    }
  }

  // A gradient that is not copied is scaled with the sum, which saves a pass over it, where that gives the same bits as
  // scaling first: dividing by a power of two does (but for sums that overflow and subnormal numbers). fp16 overflows
  // too easily.
  bool divides_late(const FusionBuffer& buffer) const {
    const DType dtype = buffer.plan.dtype;
    const bool is_wide = dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kBfloat16;
    return buffer.plan.is_alone && is_wide && !buffer.codec && options_.factor == 0 &&
           std::has_single_bit(static_cast<unsigned>(group_->size()));
  }

  Reduction reduction_of(const FusionBuffer& buffer) const {
    if (!divides_late(buffer)) return {buffer.plan.dtype, ReduceOp::kSum};
    return {buffer.plan.dtype, ReduceOp::kAvg, static_cast<std::uint32_t>(group_->size())};
  }

  // Every buffer, then who used what, which is known last. Under mutex_.
  void begin_batch() {
    notes_.reset(gradients_.size(), static_cast<std::size_t>(group_->size()), steps_ == 0);
    std::vector<Batch::Item> items;
    for (const std::size_t number : sequence_) {
      FusionBuffer& buffer = buffers_[number];
      buffer.done = std::make_shared<Operation>();
      items.push_back({nullptr, nullptr, buffer.plan.count, reduction_of(buffer), buffer.codec.get(), buffer.done});
    }
    auto* notes = reinterpret_cast<std::byte*>(notes_.data());
    items.push_back({notes, notes, notes_.size(), {DType::kUint8, ReduceOp::kMax}});
    batch_ = std::make_shared<Batch>(std::move(items), 0, exchange_);
    handle_.reset();
  }

  // The operation of the step ends with an error, or after all its parts.
  void settle(Operation& part, const std::function<bool()>& interrupted) {
    const auto start = Clock::now();
    std::optional<WaitScope> scope;
    while (!part.wait_for(kInterruptionCheck)) {
      if (handle_->error()) handle_->wait();  // throws it
      if (interrupted && interrupted()) group_->abort("interrupted");
      if (!scope) scope.emplace(*handle_);
    }
    add_exposed(std::chrono::duration<double>(Clock::now() - start).count());
  }

  void add_exposed(double seconds) {
    stats_.exposed_seconds += seconds;
    count_exposed(seconds);
  }

  std::string label_of(const FusionBuffer& buffer) const {
    return names_of(gradients_[buffer.plan.members.front()], gradients_[buffer.plan.members.back()]);
  }

  // What is under way: the first buffer that is not done, and how many follow.
  std::string label_of(const Batch& batch) const {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const FusionBuffer& buffer = buffers_[sequence_[i]];
      if (buffer.done->done()) continue;
      const std::string more =
          i + 1 == buffers_.size() ? "" : ", then " + std::to_string(buffers_.size() - i - 1) + " more fusion buffers";
      return label_of(buffer) + (batch.is_filled(i) ? "" : ", which this rank does not have yet") + more;
    }
    return "which gradients were used";
  }

  std::uint32_t buffers_over() const {
    const auto open = std::find_if(sequence_.begin(), sequence_.end(),
                                   [this](std::size_t buffer) { return !buffers_[buffer].done->done(); });
    return static_cast<std::uint32_t>(open - sequence_.begin());
  }

  // In which gradients came, then those that did not, in reverse.
  std::vector<std::uint32_t> order_of_first_step() const {
    std::vector<std::uint32_t> order(seen_.begin(), seen_.end());
    for (std::size_t index = gradients_.size(); index-- > 0;) {
      if (used_[index] == 0) order.push_back(static_cast<std::uint32_t>(index));
    }
    return order;
  }

  // After abort() nobody touches gradients any more: they may be gone.
  bool write_back_unless_aborted(FusionBuffer& buffer, std::span<const std::size_t> indices) {
    const std::shared_lock writing(fills_);
    {
      const std::lock_guard lock(mutex_);
      if (is_aborted_) return false;
    }
    look_at(buffer);
    bool is_new = buffer.returned == TimePoint{};
    for (const std::size_t index : indices) is_new = write_back(index) || is_new;
    if (is_new && trace::is_on()) buffer.returned = Clock::now();
    return true;
  }

  // False: it was there already, or lies where it is.
  bool write_back(std::size_t index) {
    Target& target = targets_[index];
    if (target.data == nullptr) return false;
    if (target.staging == nullptr) {
      read(index, target.data);
    } else {
      const Place& place = layout_.places[index];
      or_abort(
          [&] { target.staging->store(target.data, buffers_[place.buffer].place(place.offset), gradients_[index]); });
    }
    target = {};
    return true;
  }

  // A gradient is ready. Under mutex_.
  FusionBuffer& claim(std::size_t index, bool is_used) {
    if (is_aborted_) {
      rethrow_failure();  // says why
      throw ClosedError("[smdp] these gradients were aborted.");
    }
    begin_step();
    if (is_finished_) {
      rethrow_failure();
      throw Error("[smdp] gradient '" + gradients_[index].name +
                  "' was ready after finish(), which ends the step's gradients. Call wait() first.");
    }
    if (used_[index] != 0) {
      throw Error("[smdp] gradient '" + gradients_[index].name +
                  "' was ready twice in one step. Was backward called twice without waiting for the reducer?");
    }
    if (steps_ == 0) seen_.push_back(index);
    FusionBuffer& buffer = buffers_[layout_.places[index].buffer];
    used_[index] = is_used || (buffer.codec && buffer.codec->has_state()) ? kUsed : kLeftOver;
    if (trace::is_on() && buffer.first == TimePoint{}) buffer.first = Clock::now();
    return buffer;
  }

  // One more of a buffer is here or on its way to a device's memory; all of them: what is there is sent. Under mutex_.
  void flush_complete(FusionBuffer& buffer) {
    if (--buffer.coming != 0) return;
    or_abort([&] { devices_->flush(number_of(buffer)); });
  }

  std::size_t number_of(const FusionBuffer& buffer) const {
    return static_cast<std::size_t>(&buffer - buffers_.data());
  }

  // An error of this rank alone: the others need not wait for it.
  void or_abort(const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception& error) {
      group_->abort(without_tag(error.what()));
      throw;
    }
  }

  // However it ends with an error, nothing is copied to gradients afterwards, and the step cannot be taken up again.
  void or_settle(const std::function<void()>& work) {
    try {
      work();
    } catch (...) {
      group_->abort(without_tag(Failure::of(std::current_exception()).text));
      const std::lock_guard lock(mutex_);
      devices_->settle();
      throw;
    }
  }

  // By the thread of a device.
  void from_device(const std::vector<std::size_t>& indices, const std::exception_ptr& error) {
    const std::shared_lock filling(fills_);
    if (error) return group_->abort(without_tag(Failure::of(error).text));
    std::unique_lock lock(mutex_);
    if (is_aborted_) return;
    FusionBuffer& buffer = buffers_[layout_.places[indices.front()].buffer];
    lock.unlock();
    for (const std::size_t index : indices) {
      std::byte* base = buffer.memory.get();
      fill(buffer, index, base + layout_.places[index].offset * size_of(buffer.plan.dtype));
    }
    lock.lock();
    for (std::size_t i = 0; i < indices.size(); ++i) came(buffer);
    try {
      send_filled();
    } catch (const std::exception& caught) {
      group_->abort(without_tag(caught.what()));
    }
  }

  void check_gradient(std::size_t index, const void* data) const {
    check_index(index);
    if (data == nullptr && gradients_[index].count != 0) throw InvalidArgument("[smdp] a gradient at a null pointer.");
  }

  void check_index(std::size_t index) const {
    if (index < gradients_.size()) return;
    throw InvalidArgument("[smdp] there is no gradient " + std::to_string(index) + "; there are " +
                          std::to_string(gradients_.size()) + ".");
  }

  // If the reducer is closed, e.g. by abort().
  void rethrow_failure() const {
    if (const std::exception_ptr error = group_->error()) std::rethrow_exception(error);
  }

  void check_finished(const CudaStream* stream = nullptr) {
    if (stream != nullptr) {
      const std::lock_guard lock(mutex_);
      devices_->at(stream->device);
    }
    if (is_in_step_ && is_finished_ && handle_) return;  // null: finish() itself has thrown
    rethrow_failure();
    throw Error("[smdp] wait() before finish(): say that backward is over first.");
  }

  enum Used : std::uint8_t { kAbsent, kUsed, kLeftOver };
  struct Target {
    void* data = nullptr;              // null: it lies where it is summed, or has been written back
    DeviceStaging* staging = nullptr;  // null: in memory of the host
  };

  const std::vector<Gradient> gradients_;
  const GradientReducerOptions options_;
  std::unique_ptr<Group> group_;
  double factor_ = 1;
  cost::Measured measured_;
  cost::FusionSizes sizes_{};
  cost::ExchangeSizes exchange_{};
  Layout layout_;
  std::vector<FusionBuffer> buffers_;
  std::vector<std::size_t> order_;     // of gradients, in the layout
  std::size_t kept_ = 0;               // buffers at the front of sequence_ that are in order
  std::vector<std::size_t> sequence_;  // of buffers, as they are sent in this step
  StepNotes notes_;
  std::shared_ptr<Batch> batch_;  // of this step
  Group::Handle handle_;          // its operation
  std::optional<SecondLook> second_look_;
  std::uint64_t steps_ = 0;
  TimePoint last_wait_{};  // its end
  bool has_new_layout_ = false;
  bool waits_for_one_ = false;  // gradient, before the others
  Stats stats_;
  double exposed_before_ = 0;      // this step
  std::exception_ptr part_error_;  // on the completion thread, of copies back to devices

  std::shared_mutex fills_;  // shared by who copies a gradient, here or back; taken before mutex_
  std::mutex mutex_;         // guards the step's state below, and the order of what is sent
  bool is_aborted_ = false;
  bool is_in_step_ = false;
  bool is_finished_ = false;
  std::size_t next_ = 0;            // of sequence_: first buffer not sent
  std::vector<std::uint8_t> used_;  // gradients that came in this step
  std::vector<Target> targets_;     // where they came from
  LateMeans late_;
  std::vector<std::size_t> seen_;             // their order in the first step
  std::unique_ptr<DeviceGradients> devices_;  // its locks are taken after mutex_
};

GradientReducer::GradientReducer(Group& group, std::vector<Gradient> gradients, const GradientReducerOptions& options)
    : impl_(std::make_unique<Impl>(group, std::move(gradients), options)) {}
GradientReducer::~GradientReducer() = default;
void GradientReducer::ready(std::size_t index, void* data, bool is_used) { impl_->ready(index, data, is_used); }
void GradientReducer::ready(std::size_t index, void* data, int device, void* event, bool is_used) {
  impl_->ready(index, data, device, event, is_used);
}
void GradientReducer::finish() { impl_->finish(); }
void GradientReducer::or_over_ranks(std::uint8_t* flags, std::size_t count, const std::function<bool()>& interrupted) {
  impl_->or_over_ranks(flags, count, interrupted);
}
Group::Handle GradientReducer::all_reduce_sparse(std::size_t index, std::shared_ptr<SparseSum> sum) {
  return impl_->all_reduce_sparse(index, std::move(sum));
}
void GradientReducer::wait(std::size_t index, const std::function<bool()>& interrupted) {
  impl_->wait(index, nullptr, interrupted);
}
void GradientReducer::wait(const std::function<bool()>& interrupted) { impl_->wait(nullptr, interrupted); }
void GradientReducer::wait(std::size_t index, const CudaStream& stream, const std::function<bool()>& interrupted) {
  impl_->wait(index, &stream, interrupted);
}
void GradientReducer::wait(const CudaStream& stream, const std::function<bool()>& interrupted) {
  impl_->wait(&stream, interrupted);
}
void GradientReducer::then(std::function<void(const std::vector<std::size_t>&)> part,
                           std::function<void(std::exception_ptr)> end) {
  impl_->then(std::move(part), std::move(end));
}
bool GradientReducer::is_used(std::size_t index) const { return impl_->is_used(index); }
void GradientReducer::read(std::size_t index, void* out) const { impl_->read(index, out); }
void GradientReducer::abort(const std::string& reason) { impl_->abort(reason); }
bool GradientReducer::copy_kept(std::size_t index, std::size_t part, float* out) const {
  return impl_->copy_kept(index, part, out);
}
void GradientReducer::set_kept(std::size_t index, std::size_t part, const float* values) {
  impl_->set_kept(index, part, values);
}
void GradientReducer::rescale(double factor) { impl_->rescale(factor); }
GradientReducer::Stats GradientReducer::stats() const { return impl_->stats(); }
std::string GradientReducer::explain() const { return impl_->explain(); }
const std::string& GradientReducer::group_name() const { return impl_->group_name(); }

}  // namespace smdp
