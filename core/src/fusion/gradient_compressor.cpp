#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collectives/batch.h"
#include "fusion/gradient_codec.h"
#include "fusion/registration.h"
#include "reduce/reduce.h"
#include "smdp/error.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

class GradientCompressor::Impl {
 public:
  struct Entry {
    std::size_t count = 0;
    std::unique_ptr<GradientCodec> codec;
    bool is_used = false;  // in this step
  };

  GradientReducerOptions options;
  std::map<std::size_t, Entry> entries;  // by key
};

GradientCompressor::GradientCompressor(const GradientReducerOptions& options) : impl_(std::make_unique<Impl>()) {
  check_options(options, "[smdp] ");
  impl_->options = options;
}
GradientCompressor::~GradientCompressor() = default;

void GradientCompressor::check_same(Group& group) const { check_same_gradients(group, {}, impl_->options); }

Group::Handle GradientCompressor::all_reduce(Group& group, std::size_t key, void* data, std::size_t count, DType dtype,
                                             const Call& call) {
  if (data == nullptr && count != 0) throw InvalidArgument("[smdp] the pointer of a gradient is null.");
  if (!has_mean(dtype)) {
    throw InvalidArgument(std::string("[smdp] a buffer of gradients is ") + name_of(dtype) +
                          "; only floating-point and complex types have a mean.");
  }
  const bool is_coded = impl_->options.compression != Compression::kNone && dtype == DType::kFloat32;
  Impl::Entry& entry = impl_->entries[key];
  if (entry.count != count || (entry.codec != nullptr) != is_coded) {
    entry = {count, is_coded ? make_codec(impl_->options, count) : nullptr};
  }
  entry.is_used = true;
  // Divides before adding, because sums of fp16 overflow.
  const double factor = impl_->options.factor != 0 ? impl_->options.factor : 1.0 / group.size();
  const auto divide = [=] {
    if (factor != 1 && count != 0) scale(data, data, count, dtype, factor);
  };
  call.arrival ? call.arrival->prepare_by(divide) : divide();
  auto* bytes = static_cast<std::byte*>(data);
  std::vector<Batch::Item> items{{bytes, bytes, count, {dtype, ReduceOp::kSum}, entry.codec.get()}};
  return group.all_reduce_batch(std::make_shared<Batch>(std::move(items), 1), call);
}

void GradientCompressor::end_step(bool counts) {
  for (auto& [key, entry] : impl_->entries) {
    if (entry.codec && entry.is_used) entry.codec->end_step(counts);
    entry.is_used = false;
  }
}

void GradientCompressor::rescale(double factor) {
  const float scale = checked_rescale(factor);
  for (auto& [key, entry] : impl_->entries) {
    if (entry.codec) entry.codec->rescale(scale);
  }
}

}  // namespace smdp
