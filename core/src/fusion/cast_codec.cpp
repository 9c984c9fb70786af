#include "fusion/gradient_codec.h"
#include "reduce/reduce.h"

namespace smdp {
namespace {

class CastCodec final : public GradientCodec {
 public:
  explicit CastCodec(DType dtype) : dtype_(dtype) {}

  std::size_t encoded_bytes(std::size_t count) const override { return count * size_of(dtype_); }
  void encode(std::size_t, const float* in, std::size_t count, std::byte* out) override {
    narrow(out, dtype_, in, count);
  }
  // A value must not depend on whose shard it is in, because a measurement determines where shards end.
  bool encodes_own() const override { return true; }
  void decode(const std::byte* in, std::size_t count, float* out) const override { widen(out, in, dtype_, count); }

 private:
  const DType dtype_;
};

}  // namespace

std::unique_ptr<GradientCodec> make_cast_codec(DType dtype) { return std::make_unique<CastCodec>(dtype); }

std::unique_ptr<GradientCodec> make_codec(const GradientReducerOptions& options, std::size_t count) {
  switch (options.compression) {
    case Compression::kFloat16:
      return make_cast_codec(DType::kFloat16);
    case Compression::kBfloat16:
      return make_cast_codec(DType::kBfloat16);
    case Compression::kInt8:
      return make_int8_codec(count);
    case Compression::kTopK:
      return make_topk_codec(count, options.topk_ratio, options.topk_momentum);
    case Compression::kNone:
      break;
  }
  return nullptr;
}

}  // namespace smdp
