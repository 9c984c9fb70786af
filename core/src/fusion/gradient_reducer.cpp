// The public class GradientReducer.
#include "smdp/gradient_reducer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fusion/reducer_steps.h"

namespace smdp {

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
const std::vector<ShardedBuffer>& GradientReducer::sharded_buffers() const { return impl_->sharded_buffers(); }
void GradientReducer::sum_into(std::size_t index, void* own) { impl_->sum_into(index, own); }
const void* GradientReducer::means(std::size_t number) const { return impl_->means(number); }
bool GradientReducer::has_means(std::size_t number) const { return impl_->has_means(number); }
bool GradientReducer::await_means(std::size_t number, const std::function<bool()>& interrupted) {
  return impl_->await_means(number, interrupted);
}
std::unique_ptr<ParameterGather> GradientReducer::gather(const std::vector<void*>& data, bool is_once_per_host) {
  return impl_->gather(data, is_once_per_host);
}
void GradientReducer::abort(const std::string& reason) { impl_->abort(reason); }
bool GradientReducer::copy_kept(std::size_t index, std::size_t part, float* out) const {
  return impl_->copy_kept(index, part, out);
}
void GradientReducer::set_kept(std::size_t index, std::size_t part, const float* values) {
  impl_->set_kept(index, part, values);
}
void GradientReducer::rescale(double factor) { impl_->rescale(factor); }
GradientReducer::Stats GradientReducer::stats() const { return impl_->stats(); }
GradientReducer::Speed GradientReducer::speed() const { return impl_->speed(); }
std::string GradientReducer::explain() const { return impl_->explain(); }
const std::string& GradientReducer::group_name() const { return impl_->group_name(); }

}  // namespace smdp
