#include "reduce/reduce.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "reduce/floating_point_mode.h"
#include "reduce/kernels.h"
#include "smdp/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace smdp {
namespace {

struct Candidate {
  const kernels::Table* table;
  bool (*runs_here)();
};

#if defined(__x86_64__)
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool is_amd() { return __builtin_cpu_is("amd"); }

// __builtin_cpu_supports also checks whether the operating system saves the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && has_f16c(); }

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && has_f16c();
}
#else
bool is_amd() { return false; }
#endif

// Fastest first.
constexpr Candidate kCandidates[] = {
#if defined(__x86_64__)
    // On an AMD EPYC (Zen 4), large messages take a quarter longer with AVX-512 than with AVX2.
    {&kernels::avx512, [] { return has_avx512() && !is_amd(); }},
    {&kernels::avx2, has_avx2},
    {&kernels::avx512, [] { return has_avx512() && is_amd(); }},
#elif defined(__aarch64__)
    {&kernels::neon, [] { return true; }},
#endif
    {&kernels::generic, [] { return true; }},
};

const kernels::Table* detect() {
  for (const Candidate& candidate : kCandidates) {
    if (candidate.runs_here()) return candidate.table;
  }
  return &kernels::generic;
}

std::atomic<const kernels::Table*> in_use{nullptr};

bool is_divided_first(const Reduction& r) { return r.op == ReduceOp::kAvg && component_of(r.dtype) == DType::kFloat16; }

template <class T>
void scale_integers(void* dst, const void* src, std::size_t count, double factor) {
  constexpr double kTwoTo63 = 9223372036854775808.0;
  const bool is_whole = std::trunc(factor) == factor && std::abs(factor) < kTwoTo63;
  const auto whole = is_whole ? static_cast<std::uint64_t>(static_cast<std::int64_t>(factor)) : 0;
  // The first doubles that are out of T's range, above and below.
  constexpr double kUpper = static_cast<double>(std::numeric_limits<T>::max() / 2 + 1) * 2.0;
  constexpr double kLower = static_cast<double>(std::numeric_limits<T>::min()) - (sizeof(T) < 8 ? 1.0 : 0.0);
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, static_cast<const char*>(src) + i * sizeof(T), sizeof(T));
    if (is_whole) {
      value = static_cast<T>(static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) * whole);
    } else {
      const double product = static_cast<double>(value) * factor;
      if (product >= kUpper) {
        value = std::numeric_limits<T>::max();
      } else if (product <= kLower) {
        value = std::numeric_limits<T>::min();
      } else {
        value = std::isnan(product) ? T{0} : static_cast<T>(product);
      }
    }
    std::memcpy(static_cast<char*>(dst) + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

DType component_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kComplex32:
      return DType::kFloat16;
    case DType::kComplex64:
      return DType::kFloat32;
    case DType::kComplex128:
      return DType::kFloat64;
    default:
      return dtype;
  }
}

const kernels::Table& kernels::current() noexcept {
  const Table* table = in_use.load(std::memory_order_relaxed);
  if (table == nullptr) {
    const Table* best = detect();
    // A kernel forced in the meantime stays.
    table = in_use.compare_exchange_strong(table, best) ? best : table;
  }
  return *table;
}

Reduction first_stage(Reduction r) noexcept { return is_divided_first(r) ? r : middle_stage(r); }

Reduction middle_stage(Reduction r) noexcept {
  r.divisor = 1;
  return r;
}

Reduction last_stage(Reduction r) noexcept { return is_divided_first(r) ? middle_stage(r) : r; }

void copy_bytes(void* to, const void* from, std::size_t bytes) noexcept {
  // For blocks between these sizes, glibc's memcpy uses one `rep movsb`, which AMD's processors execute at a quarter of
  // the speed if the two addresses are aligned differently. NumPy's arrays start 16 bytes behind a page's start, slots
  // at it.
  constexpr std::size_t kFewest = std::size_t{2} << 10;
  constexpr std::size_t kMost = std::size_t{4} << 20;
  static const bool is_slow = is_amd();
  if (is_slow && bytes >= kFewest && bytes <= kMost) {
    copy_in_vectors(to, from, bytes);
  } else if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

void copy_in_vectors(void* to, const void* from, std::size_t bytes) noexcept {
  const auto column = static_cast<std::size_t>(ReduceOp::kSum);
  kernels::current().reduce[static_cast<std::size_t>(DType::kUint8)][column](to, &from, 1, bytes, 1);
}

void reduce(void* dst, const void* const* sources, std::size_t k, std::size_t count, const Reduction& r) noexcept {
  if (count == 0) return;
  ReduceOp op = r.op;
  if (op == ReduceOp::kPremulSum || (op == ReduceOp::kAvg && r.divisor == 1)) op = ReduceOp::kSum;
  if (k == 1 && op != ReduceOp::kAvg && r.dtype != DType::kBool) {
    if (dst != sources[0]) copy_bytes(dst, sources[0], count * size_of(r.dtype));
    return;
  }

  DType dtype = r.dtype;
  const DType component = component_of(dtype);
  if (component != dtype) {
    count *= 2;
    if (op != ReduceOp::kProduct) dtype = component;
  }
  const bool is_bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  if (is_bitwise && dtype != DType::kBool) {
    count *= size_of(dtype);
    dtype = DType::kUint8;
  }

  const FloatingPointMode mode;
  kernels::current().reduce[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)](dst, sources, k, count,
                                                                                           r.divisor);
}

void scale(void* dst, const void* src, std::size_t count, DType dtype, double factor) noexcept {
  const FloatingPointMode mode;
  switch (dtype) {
    case DType::kUint8:
      return scale_integers<std::uint8_t>(dst, src, count, factor);
    case DType::kInt8:
      return scale_integers<std::int8_t>(dst, src, count, factor);
    case DType::kInt16:
      return scale_integers<std::int16_t>(dst, src, count, factor);
    case DType::kInt32:
      return scale_integers<std::int32_t>(dst, src, count, factor);
    case DType::kInt64:
      return scale_integers<std::int64_t>(dst, src, count, factor);
    default:
      break;
  }
  const DType component = component_of(dtype);
  if (component != dtype) count *= 2;
  kernels::current().scale[static_cast<std::size_t>(component)](dst, src, count, factor);
}

void narrow(void* dst, DType dtype, const float* src, std::size_t count, double factor) noexcept {
  const FloatingPointMode mode;
  kernels::current().narrow[static_cast<std::size_t>(dtype)](dst, src, count, factor);
}

void widen(float* dst, const void* src, DType dtype, std::size_t count, double factor) noexcept {
  const FloatingPointMode mode;
  kernels::current().widen[static_cast<std::size_t>(dtype)](dst, src, count, factor);
}

const char* kernel_name() noexcept { return kernels::current().name; }

void force_kernel(const std::string& name) {
  std::string names;
  for (const Candidate& candidate : kCandidates) {
    if (!candidate.runs_here()) continue;
    if (name == candidate.table->name) {
      in_use.store(candidate.table);
      return;
    }
    names += (names.empty() ? "" : ", ") + std::string(candidate.table->name);
  }
  throw ConfigError("[smdp] SMDP_FORCE_KERNEL is '" + name + "', which this CPU cannot run; allowed: " + names + ".");
}

std::vector<std::string> available_kernels() {
  std::vector<std::string> names;
  for (const Candidate& candidate : kCandidates) {
    if (candidate.runs_here()) names.emplace_back(candidate.table->name);
  }
  return names;
}

}  // namespace smdp
