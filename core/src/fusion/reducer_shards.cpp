// What a gradient reducer does for ranks that own shards.
#include <memory>
#include <string>
#include <vector>

#include "fusion/parameter_gather.h"
#include "fusion/reducer_steps.h"
#include "smdp/error.h"

namespace smdp {

const std::vector<ShardedBuffer>& GradientReducer::Impl::sharded_buffers() const {
  check_sharded("sharded_buffers()");
  return sharded_;
}

void GradientReducer::Impl::sum_into(std::size_t index, void* own) {
  check_sharded("sum_into()");
  check_index(index);
  const Lock lock(mutex_);
  FusionBuffer& buffer = buffers_[plan_->place(index).buffer];
  if (!buffer.plan.is_alone || kept_->has_state()) {
    throw InvalidArgument("[smdp] sum_into() for gradient '" + gradients_[index].name +
                          "', which is not summed in its own memory, or is looked at when the step ends. Call it for "
                          "gradients that are alone in their buffer, without compression 'int8' and 'topk'.");
  }
  begin_step();
  if (is_finished_ || used_[index] != kAbsent) {
    throw Error("[smdp] sum_into() for gradient '" + gradients_[index].name +
                "' after ready(). Call it before, in the same step.");
  }
  buffer.own = static_cast<std::byte*>(own);
}

const void* GradientReducer::Impl::means(std::size_t number) const { return sharded_buffer("means()", number).data; }

bool GradientReducer::Impl::has_means(std::size_t number) {
  const FusionBuffer& buffer = sharded_buffer("has_means()", number);
  if (kept_->has_state()) {  // wait() looks at the sums, and may still change them
    const Lock lock(mutex_);
    if (is_in_step_) return false;
  }
  return buffer.done && buffer.done->done() && !buffer.done->error();
}

bool GradientReducer::Impl::await_means(std::size_t number, const std::function<bool()>& interrupted) {
  const FusionBuffer& buffer = sharded_buffer("await_means()", number);
  {
    Lock lock(mutex_);
    if (!is_in_step_ || kept_->has_state() || !batch_->is_sent(number)) return false;
    if (!batch_->handle()) {  // the group failed before anything was sent
      lock.unlock();
      rethrow_failure();
      return false;
    }
  }
  settle(*buffer.done, interrupted);
  return true;
}

std::unique_ptr<ParameterGather> GradientReducer::Impl::gather(const std::vector<void*>& data, bool is_once_per_host) {
  check_sharded("gather()");
  {
    const Lock lock(mutex_);
    if (is_in_step_ && !is_finished_) throw Error("[smdp] gather() in the middle of a step: call finish() first.");
    if (is_in_step_ && kept_->has_state()) {  // wait() ends with a collective, for which gather() would be in the way
      throw Error(std::string("[smdp] gather() before wait(): compression '") + name_of(options_.compression) +
                  "' keeps values of the step, which only wait() ends. Call wait() first.");
    }
  }
  rethrow_failure();
  std::vector<std::string> labels;
  for (const FusionBuffer& buffer : buffers_) labels.push_back("parameters " + label_of(buffer, gradients_));
  return std::make_unique<ParameterGather>(std::make_unique<ParameterGather::Impl>(
      *group_, buffers_, std::move(labels), data, plan_->exchange(), spans_hosts(), is_once_per_host));
}

void GradientReducer::Impl::check_not_sharded(const char* what) const {
  if (!is_sharded()) return;
  throw Error(std::string("[smdp] ") + what + " of a reducer whose shards are '" + name_of(options_.shards) +
              "': each rank has the means of its own shard only. Use means() and sharded_buffers().");
}

void GradientReducer::Impl::check_sharded(const char* what) const {
  if (is_sharded()) return;
  throw Error(std::string("[smdp] ") + what +
              " of a reducer without shards. Make it with shards 'world' or 'host' in its options.");
}

const FusionBuffer& GradientReducer::Impl::sharded_buffer(const char* what, std::size_t number) const {
  check_sharded(what);
  if (number < buffers_.size()) return buffers_[number];
  throw InvalidArgument("[smdp] there is no fusion buffer " + std::to_string(number) + "; there are " +
                        std::to_string(buffers_.size()) + ".");
}

void GradientReducer::Impl::throw_device_has_no_shards(std::size_t index, int device) const {
  throw InvalidArgument("[smdp] gradient '" + gradients_[index].name + "' is on CUDA device " + std::to_string(device) +
                        ", and this reducer has shards, which are in host memory. Move the model to the CPU, or make "
                        "the reducer without shards.");
}

void GradientReducer::Impl::agree_on_finite(const std::function<bool()>& interrupted) {
  if (!kept_->has_state()) return;
  std::uint8_t is_lost = kept_->is_finite() ? 0 : 1;
  or_over_ranks(&is_lost, 1, interrupted);
  if (is_lost != 0) kept_->forget_step();
}

}  // namespace smdp
