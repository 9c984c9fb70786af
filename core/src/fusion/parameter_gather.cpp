#include "fusion/parameter_gather.h"

#include <exception>
#include <string>
#include <utility>

#include "fusion/part_wait.h"
#include "smdp/error.h"

namespace smdp {

ParameterGather::Impl::Impl(Group& group, const std::vector<FusionBuffer>& buffers, std::vector<std::string> labels,
                            const std::vector<void*>& data, const cost::ExchangeSizes& sizes, bool shards_span_hosts,
                            bool is_once_per_host)
    : group_(group), labels_(std::move(labels)), is_ready_(buffers.size()) {
  if (data.size() != buffers.size()) {
    throw InvalidArgument("[smdp] gather() got memory for " + std::to_string(data.size()) + " buffers; there are " +
                          std::to_string(buffers.size()) + ".");
  }
  std::vector<Batch::Item> items;
  for (std::size_t number = 0; number < buffers.size(); ++number) {
    done_.push_back(std::make_shared<Operation>());
  }
  for (std::size_t number = buffers.size(); number-- > 0;) {
    const FusionBuffer& buffer = buffers[number];
    auto* memory = static_cast<std::byte*>(data[number]);
    if (memory == nullptr && buffer.plan.count > 0) {
      throw InvalidArgument("[smdp] gather() got a null pointer for " + labels_[number] + ".");
    }
    items.push_back({memory,
                     memory,
                     buffer.plan.count,
                     {buffer.plan.dtype, ReduceOp::kSum},
                     buffer.codec.get(),
                     done_[number],
                     Part::kFromOwners,
                     buffer.ends()});
  }
  batch_ = std::make_shared<Batch>(std::move(items), 0, sizes, shards_span_hosts, is_once_per_host);
}

void ParameterGather::Impl::ready(std::size_t number) {
  check_number(number);
  is_ready_[position(number)] = true;
  const std::size_t before = sent_;
  while (sent_ < is_ready_.size() && is_ready_[sent_]) ++sent_;
  if (sent_ == before) return;
  batch_->fill(sent_);
  if (handle_) return group_.wake();
  Call call;
  call.async = true;
  call.label = [batch = batch_, labels = labels_] {
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (batch->items()[i].done->done()) continue;
      return labels[labels.size() - 1 - i] + (batch->is_filled(i) ? "" : ", which this rank has not updated yet");
    }
    return std::string("the last parameters");
  };
  handle_ = group_.all_reduce_batch(batch_, call);
}

void ParameterGather::Impl::wait(std::size_t number, const std::function<bool()>& interrupted) {
  check_number(number);
  if (!is_ready_[position(number)]) {
    throw Error("[smdp] wait() for " + labels_[number] + " before ready(): say first that this rank has updated it.");
  }
  check_travels(number);
  handle_->hurry();  // the caller has nothing else to do
  wait_for_part(*done_[number], handle_, group_, interrupted);
}

void ParameterGather::Impl::wait(const std::function<bool()>& interrupted) {
  if (done_.empty()) return;
  for (std::size_t number = done_.size(); number-- > 0;) wait(number, interrupted);
  wait_for_part(*handle_, handle_, group_, interrupted);
  handle_->wait();  // throws its error
}

bool ParameterGather::Impl::is_there(std::size_t number) const {
  check_number(number);
  return done_[number]->done();
}

void ParameterGather::Impl::check_number(std::size_t number) const {
  if (number < done_.size()) return;
  throw InvalidArgument("[smdp] there is no fusion buffer " + std::to_string(number) + "; there are " +
                        std::to_string(done_.size()) + ".");
}

void ParameterGather::Impl::check_travels(std::size_t number) const {
  if (handle_ && position(number) < sent_) return;
  if (const std::exception_ptr error = group_.error()) std::rethrow_exception(error);
  std::string missing;
  for (std::size_t before = 0; before < position(number); ++before) {
    if (!is_ready_[before]) missing += (missing.empty() ? "" : ", ") + std::to_string(done_.size() - 1 - before);
  }
  throw Error("[smdp] wait() for fusion buffer " + std::to_string(number) +
              " would not end, because buffers travel in reverse order, and these are not ready yet: " + missing +
              ". Call ready() for them first.");
}

ParameterGather::ParameterGather(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ParameterGather::~ParameterGather() = default;
void ParameterGather::ready(std::size_t number) { impl_->ready(number); }
void ParameterGather::wait(std::size_t number, const std::function<bool()>& interrupted) {
  impl_->wait(number, interrupted);
}
void ParameterGather::wait(const std::function<bool()>& interrupted) { impl_->wait(interrupted); }
bool ParameterGather::is_there(std::size_t number) const { return impl_->is_there(number); }

}  // namespace smdp
