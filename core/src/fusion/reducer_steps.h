// The steps of a gradient reducer: takes gradients as backward produces them, sends the buffers that they fill, and
// writes the means back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "fusion/device_gradients.h"
#include "fusion/fusion_buffer.h"
#include "fusion/fusion_plan.h"
#include "fusion/kept_values.h"
#include "fusion/registration.h"
#include "fusion/sharded_buffers.h"
#include "fusion/step_batch.h"
#include "fusion/step_notes.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

class GradientReducer::Impl {
 public:
  Impl(Group& base, std::vector<Gradient> gradients, const GradientReducerOptions& options);

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  // Ends operations in flight before their buffers are freed.
  ~Impl();
  void ready(std::size_t index, void* data, bool is_used);
  void ready(std::size_t index, void* data, int device, void* event, bool is_used);
  void finish();
  void or_over_ranks(std::uint8_t* flags, std::size_t count, const std::function<bool()>& interrupted);
  Group::Handle all_reduce_sparse(std::size_t index, std::shared_ptr<SparseSum> sum);

  // stream: null blocks until the copies back to devices are done.
  void wait(std::size_t index, const CudaStream* stream, const std::function<bool()>& interrupted);
  void wait(const CudaStream* stream, const std::function<bool()>& interrupted);
  void then(std::function<void(const std::vector<std::size_t>&)> part, std::function<void(std::exception_ptr)> end);

  bool is_used(std::size_t index) const;

  void read(std::size_t index, void* out) const;
  void abort(const std::string& reason);

  void rescale(double factor) { kept_->rescale(checked_rescale(factor)); }

  bool copy_kept(std::size_t index, std::size_t part, float* out) {
    check_index(index);
    return kept_->copy(index, part, out);
  }
  void set_kept(std::size_t index, std::size_t part, const float* values) {
    check_index(index);
    kept_->set(index, part, values);
  }

  Stats stats() const { return stats_; }
  const std::string& group_name() const { return group_->name(); }

  Speed speed() const {
    const cost::Measured& measured = plan_->measured();
    return {measured.latency, measured.bandwidth, measured.reduction};
  }
  std::string explain() const { return plan_->explain(); }

  // reducer_shards.cpp
  const std::vector<ShardedBuffer>& sharded_buffers() const;
  void sum_into(std::size_t index, void* own);
  const void* means(std::size_t number) const;
  bool has_means(std::size_t number);
  bool await_means(std::size_t number, const std::function<bool()>& interrupted);
  std::unique_ptr<ParameterGather> gather(const std::vector<void*>& data, bool is_once_per_host);

 private:
  // Agrees with the other ranks on how gradients travel, and allocates memory for them.
  void prepare(int streams);
  void end_step(TimePoint begin);

  // Since the last wait the framework has been computing.
  void trace_wait(TimePoint begin);

  // Allocates the buffers of the plan.
  void take_buffers();

  void begin_step() SMDP_REQUIRES(mutex_);

  // data: null if the gradient is missing.
  void fill(FusionBuffer& buffer, std::size_t index, void* data) const;

  // Counts a gradient that has filled its place.
  void came(FusionBuffer& buffer) SMDP_REQUIRES(mutex_);

  void send_filled() SMDP_REQUIRES(mutex_) { batch_->send_filled(is_finished_); }

  // Returns whether a gradient that is not copied is scaled together with the sum. This saves a pass over it if it
  // gives the same bits as scaling first, which division by a power of two does (except for sums that overflow and
  // subnormal numbers). Not for fp16, which overflows too easily.
  bool divides_late(const FusionBuffer& buffer) const;

  Reduction reduction_of(const FusionBuffer& buffer) const;

  // Waits for a part; the step's operation ends with an error or after all its parts.
  void settle(Operation& part, const std::function<bool()>& interrupted);
  void add_exposed(double seconds);

  // Returns whether it wrote; after abort() gradients must not be accessed, because they may be freed.
  bool write_back_unless_aborted(FusionBuffer& buffer, std::span<const std::size_t> indices);

  // Returns false if it had been written already, or stays where it was summed.
  bool write_back(std::size_t index);

  // Marks a gradient as ready.
  FusionBuffer& claim(std::size_t index, bool is_used) SMDP_REQUIRES(mutex_);

  // Counts one more gradient of a buffer as arrived or in transit on a device. Once all are, sends those on devices.
  void flush_complete(FusionBuffer& buffer) SMDP_REQUIRES(mutex_);

  std::size_t number_of(const FusionBuffer& buffer) const {
    return static_cast<std::size_t>(&buffer - buffers_.data());
  }

  // For errors of this rank alone: aborts, so that the other ranks need not wait for it.
  void or_abort(const std::function<void()>& work);

  // After any error, nothing is copied to gradients any more, and the step cannot be resumed.
  void or_settle(const std::function<void()>& work);

  // Called by the thread of a device.
  void from_device(const std::vector<std::size_t>& indices, const std::exception_ptr& error);

  void check_gradient(std::size_t index, const void* data) const;

  void check_index(std::size_t index) const;

  // Throws if the reducer is closed, e.g. by abort().
  void rethrow_failure() const;
  void check_finished(const CudaStream* stream = nullptr);

  // reducer_shards.cpp
  bool is_sharded() const { return options_.shards != ShardScope::kNone; }
  bool spans_hosts() const { return options_.shards == ShardScope::kWorld; }
  void check_not_sharded(const char* what) const;
  void check_sharded(const char* what) const;
  const FusionBuffer& sharded_buffer(const char* what, std::size_t number) const;
  [[noreturn]] void throw_device_has_no_shards(std::size_t index, int device) const;
  // Collective: no rank keeps what compression would have kept of a step in which the sums of one were not finite.
  void agree_on_finite(const std::function<bool()>& interrupted);

  enum Used : std::uint8_t { kAbsent, kUsed, kLeftOver };
  struct Target {
    void* data = nullptr;              // null: it stays where it is summed, or has been written back
    DeviceStaging* staging = nullptr;  // null: in host memory
  };

  const std::vector<Gradient> gradients_;
  const GradientReducerOptions options_;
  std::unique_ptr<Group> group_;
  double factor_ = 1;
  std::unique_ptr<FusionPlan> plan_;
  std::vector<FusionBuffer> buffers_;
  std::vector<ShardedBuffer> sharded_;  // empty unless is_sharded()
  std::unique_ptr<KeptValues> kept_;
  StepNotes notes_;
  std::unique_ptr<StepBatch> batch_;  // of this step
  std::uint64_t steps_ = 0;
  TimePoint last_wait_{};  // when it ended
  bool has_new_layout_ = false;
  bool waits_for_one_ = false;  // some wait was for a single gradient, before the others
  Stats stats_;
  double exposed_before_ = 0;      // in this step
  std::exception_ptr part_error_;  // on the completion thread, from copies back to devices

  // Held shared by threads that copy a gradient, in either direction.
  SharedMutex fills_ SMDP_ACQUIRED_BEFORE(mutex_);
  Mutex mutex_;  // also keeps the order of what is sent
  bool is_aborted_ SMDP_GUARDED_BY(mutex_) = false;
  bool is_in_step_ SMDP_GUARDED_BY(mutex_) = false;
  bool is_finished_ SMDP_GUARDED_BY(mutex_) = false;
  std::vector<std::uint8_t> used_ SMDP_GUARDED_BY(mutex_);  // gradients that arrived in this step
  std::vector<std::size_t> seen_ SMDP_GUARDED_BY(mutex_);   // their order in the first step
  // Where gradients came from. An entry belongs to the thread that claimed its gradient, and after finish() to the
  // waiting thread.
  std::vector<Target> targets_;
  std::unique_ptr<DeviceGradients> devices_;  // its locks are taken after mutex_
};

}  // namespace smdp
