#include "fusion/step_batch.h"

#include <algorithm>
#include <utility>

#include "fusion/registration.h"
#include "fusion/sending_order.h"

namespace smdp {

std::string label_of(const FusionBuffer& buffer, const std::vector<Gradient>& gradients) {
  return names_of(gradients[buffer.plan.members.front()], gradients[buffer.plan.members.back()]);
}

void StepBatch::reset() {
  kept_ = buffers_.size();
  sequence_ = sending_order(plan_.layout().buffers, kept_);
}

void StepBatch::reorder(const std::vector<std::uint32_t>& over) {
  const std::uint32_t most = *std::max_element(over.begin(), over.end());
  kept_ = most == 0 ? buffers_.size() : next_kept(kept_, most - 1, buffers_.size());
  sequence_ = sending_order(plan_.layout().buffers, kept_);
}

void StepBatch::begin(const std::function<Reduction(const FusionBuffer&)>& reduction) {
  next_ = 0;
  const Part part = shards_ == ShardScope::kNone ? Part::kWhole : Part::kToOwners;
  std::vector<Batch::Item> items;
  for (const std::size_t number : sequence_) {
    FusionBuffer& buffer = buffers_[number];
    buffer.done = std::make_shared<Operation>();
    items.push_back(
        {nullptr, nullptr, buffer.plan.count, reduction(buffer), buffer.codec.get(), buffer.done, part, buffer.ends()});
  }
  auto* notes = reinterpret_cast<std::byte*>(notes_.data());
  items.push_back({notes, notes, notes_.size(), {DType::kUint8, ReduceOp::kMax}});
  batch_ = std::make_shared<Batch>(std::move(items), 0, plan_.exchange(), shards_ != ShardScope::kHost);
  handle_.reset();
}

void StepBatch::send_filled(bool is_finished) {
  const std::size_t before = next_;
  for (; next_ < sequence_.size(); ++next_) {
    FusionBuffer& buffer = buffers_[sequence_[next_]];
    if (buffer.missing != 0) break;
    batch_->place(next_, buffer.data, buffer.own);
  }
  if (next_ == before && !is_finished) return;
  const bool is_all = is_finished && next_ == sequence_.size();
  batch_->fill(next_ + (is_all ? 1 : 0));
  if (handle_) return group_.wake();
  Call call;
  call.async = true;
  call.label = [this, batch = batch_] { return label(*batch); };
  handle_ = group_.all_reduce_batch(batch_, call);
}

std::uint32_t StepBatch::buffers_over() const {
  const auto open = std::find_if(sequence_.begin(), sequence_.end(),
                                 [this](std::size_t buffer) { return !buffers_[buffer].done->done(); });
  return static_cast<std::uint32_t>(open - sequence_.begin());
}

std::string StepBatch::label(const Batch& batch) const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const FusionBuffer& buffer = buffers_[sequence_[i]];
    if (buffer.done->done()) continue;
    const std::string more =
        i + 1 == buffers_.size() ? "" : ", then " + std::to_string(buffers_.size() - i - 1) + " more fusion buffers";
    return label_of(buffer, gradients_) + (batch.is_filled(i) ? "" : ", which this rank does not have yet") + more;
  }
  return "which gradients were used";
}

}  // namespace smdp
