#include "fusion/registration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <string>

#include "collectives/batch.h"
#include "fusion/calibration.h"
#include "reduce/reduce.h"
#include "smdp/error.h"

namespace smdp {
namespace {

// A name may contain anything, but lines are compared.
std::string one_line(const std::string& name) {
  std::string text;
  for (const char c : name) text += c == '\n' ? std::string("\\n") : std::string(1, c);
  return text;
}

constexpr const char* kElements = " of ";

std::string line_of(const Gradient& gradient) {
  const std::string shape = gradient.shape.empty() ? "[" + std::to_string(gradient.count) + "]" : gradient.shape;
  return "'" + one_line(gradient.name) + "' " + name_of(gradient.dtype) + shape +
         (gradient.is_whole ? ", not cut," : "") + kElements + std::to_string(gradient.count);
}

// Returns a line for a message, with the number of elements only if the shape, which is text, does not distinguish the
// lines.
std::string shown(const std::string& line, const std::string& other) {
  const std::size_t end = line.rfind(kElements);
  const bool is_told = line.substr(0, end) != other.substr(0, other.rfind(kElements));
  return is_told || end == std::string::npos ? line.substr(0, end) : line + " elements";
}

bool is_same(const std::string& line, const std::string& other, bool with_names) {
  if (with_names || line.front() != '\'' || other.front() != '\'') return line == other;
  return line.substr(line.rfind("' ")) == other.substr(other.rfind("' "));
}

// Keeps the digits of small values, which std::to_string would show as 0.
std::string text_of(double value) {
  std::array<char, 32> text{};  // with a decimal point in any locale, because ranks compare it
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, 9);
  return {text.data(), end};
}

std::vector<std::string> lines_of(const std::vector<Gradient>& gradients, const GradientReducerOptions& options) {
  std::vector<std::string> lines;
  for (const Gradient& gradient : gradients) lines.push_back(line_of(gradient));
  lines.push_back(std::string("compression ") + name_of(options.compression) + ", buffers of at most " +
                  std::to_string(options.buffer_bytes) + " bytes, " +
                  (options.factor == 0 ? "their mean" : "their sum times " + text_of(options.factor)) +
                  ", top-k ratio " + text_of(options.topk_ratio) + ", momentum " + text_of(options.topk_momentum) +
                  ", shards " + name_of(options.shards));
  return lines;
}

// Returns rank `root`'s text on all ranks; `own` is used on the root.
std::string text_from(Group& group, int root, const std::string& own) {
  std::int64_t length = static_cast<std::int64_t>(own.size());
  group.broadcast(&length, std::array<std::int64_t, 1>{1}, DType::kInt64, root);
  std::string text = own;
  text.resize(static_cast<std::size_t>(length));
  group.broadcast(text.data(), std::array<std::int64_t, 1>{length}, DType::kUint8, root);
  return text;
}

// Returns the first difference between rank 0's lines and this rank's; empty if there is none.
std::string difference(const std::string& theirs, const std::vector<std::string>& own, int rank, bool with_names) {
  std::size_t begin = 0;
  for (std::size_t i = 0;; ++i) {
    const bool they_end = begin >= theirs.size();
    if (they_end && i == own.size()) return "";
    const std::size_t end = they_end ? begin : std::min(theirs.find('\n', begin), theirs.size());
    const std::string line = theirs.substr(begin, end - begin);
    if (!they_end && i < own.size() && is_same(line, own[i], with_names)) {
      begin = end + 1;
      continue;
    }
    if (!they_end && i + 1 == own.size() && line.rfind("compression ", 0) == 0) {
      return "the options on rank " + std::to_string(rank) + " are " + own[i] + "; on rank 0: " + line +
             ". Use the same options on all ranks.";
    }
    const bool is_here = i + 1 < own.size();
    const bool is_there = !they_end && line.rfind("compression ", 0) != 0;
    return "gradient " + std::to_string(i) + " is " + (is_here ? shown(own[i], line) : "missing") + " on rank " +
           std::to_string(rank) + ", and " + (is_there ? shown(line, own[i]) : "missing") +
           " on rank 0. All ranks must build the same model, with the same parameters in the same order, and freeze "
           "the same parameters.";
  }
}

// Calls that are not part of training are not counted.
Call uncounted() {
  Call call;
  call.is_counted = false;
  return call;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class GroupProbe : public Probe {
 public:
  explicit GroupProbe(Group& group) : group_(group) {}

  // Runs on the progress thread, as gradients are summed there.
  double all_reduce(std::size_t floats, std::size_t streams) override {
    data_.resize(std::max(data_.size(), floats));
    Call call = uncounted();
    call.async = true;
    cost::ExchangeSizes sizes;
    sizes.streams = streams;
    auto* bytes = reinterpret_cast<std::byte*>(data_.data());
    std::vector<Batch::Item> items{{bytes, bytes, floats, {DType::kFloat32, ReduceOp::kSum}}};
    const auto start = std::chrono::steady_clock::now();
    group_.all_reduce_batch(std::make_shared<Batch>(std::move(items), 1, sizes), call)->wait();
    return seconds_since(start);
  }

  // Measured while the other ranks of this host do the same.
  double sum(std::size_t floats) override {
    data_.resize(std::max(data_.size(), floats));
    sum_.resize(std::max(sum_.size(), floats));
    const std::array<const void*, 2> sources{sum_.data(), data_.data()};
    const auto start = std::chrono::steady_clock::now();
    reduce(sum_.data(), sources.data(), sources.size(), floats, {DType::kFloat32, ReduceOp::kSum});
    return seconds_since(start);
  }

  bool agreed(bool mine) override {
    auto value = static_cast<std::uint8_t>(mine);
    group_.broadcast(&value, std::array<std::int64_t, 1>{1}, DType::kUint8, 0, uncounted());
    return value != 0;
  }

 private:
  Group& group_;
  std::vector<float> data_;
  std::vector<float> sum_;
};

}  // namespace

bool has_mean(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBfloat16:
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
      return true;
    default:
      return false;
  }
}

std::string names_of(const Gradient& first, const Gradient& last) {
  if (&first == &last) return "gradient '" + first.name + "'";
  return "gradients '" + first.name + "' to '" + last.name + "'";
}

std::string purpose_of(const std::vector<Gradient>& gradients, const GradientReducerOptions& options) {
  if (!options.purpose.empty() || gradients.empty()) return options.purpose;
  return names_of(gradients.front(), gradients.back());
}

void check_options(const GradientReducerOptions& options, const std::string& prefix) {
  if (options.buffer_bytes == 0) throw InvalidArgument(prefix + "buffer_bytes is 0; it must be above 0.");
  if (!(options.topk_ratio > 0 && options.topk_ratio <= 1)) {
    throw InvalidArgument(prefix + "topk_ratio is " + text_of(options.topk_ratio) +
                          "; it must be above 0 and at most 1.");
  }
  if (!std::isfinite(options.factor)) {
    throw InvalidArgument(prefix + "factor is " + text_of(options.factor) + "; it must be a finite number.");
  }
  if (options.topk_momentum > 0 && options.compression != Compression::kTopK) {
    throw InvalidArgument(prefix + "topk_momentum is " + text_of(options.topk_momentum) + " with compression " +
                          name_of(options.compression) + "; allowed: with topk only.");
  }
  if (!(options.topk_momentum >= 0 && options.topk_momentum < 1)) {
    throw InvalidArgument(prefix + "topk_momentum is " + text_of(options.topk_momentum) +
                          "; it must be at least 0 and below 1.");
  }
}

float checked_rescale(double factor) {
  const auto scale = static_cast<float>(factor);
  if (scale > 0 && std::isfinite(scale)) return scale;
  throw InvalidArgument("[smdp] rescale(" + text_of(factor) +
                        "): the factor must be above 0 and within the range of float32.");
}

void check_gradients(const Group& group, const std::vector<Gradient>& gradients,
                     const GradientReducerOptions& options) {
  const std::string prefix =
      "[smdp] rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) + ": ";
  check_options(options, prefix);
  for (const Gradient& gradient : gradients) {
    if (has_mean(gradient.dtype)) continue;
    throw InvalidArgument(prefix + "gradient '" + gradient.name + "' is " + name_of(gradient.dtype) +
                          "; only floating-point and complex types have a mean. Leave this gradient out.");
  }
}

void check_same_gradients(Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options) {
  const std::vector<std::string> own = lines_of(gradients, options);
  std::string joined;
  for (const std::string& line : own) joined += line + '\n';
  const std::string found = difference(text_from(group, 0, joined), own, group.rank(), options.compares_names);
  const std::int64_t length = static_cast<std::int64_t>(found.size());
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(group.size()));
  std::vector<Buffer> targets;
  for (auto& one : lengths) targets.push_back({&one, 1});
  group.all_gather({&length, 1}, targets, DType::kInt64);
  const auto first = std::find_if(lengths.begin(), lengths.end(), [](std::int64_t one) { return one != 0; });
  if (first == lengths.end()) return;
  const std::string text = text_from(group, static_cast<int>(first - lengths.begin()), found);
  throw MismatchError("[smdp] rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) +
                      " (host " + group.host_names()[static_cast<std::size_t>(group.rank())] +
                      "): the lists of gradients differ: " + text);
}

cost::Measured measure(Group& group, bool tries_streams) {
  GroupProbe probe(group);
  cost::Measured measured = calibrate(probe, tries_streams);
  group.broadcast(&measured, std::array<std::int64_t, 1>{sizeof measured}, DType::kUint8, 0, uncounted());
  return measured;
}

}  // namespace smdp
