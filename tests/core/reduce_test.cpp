// Every dtype, operation and kernel against one scalar reference, bit by bit.
#include "reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "reduce/streamed.h"
#include "smdp/error.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace smdp {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr DType kAllDTypes[] = {
    DType::kBool,           DType::kUint8,         DType::kInt8,         DType::kInt16,          DType::kInt32,
    DType::kInt64,          DType::kFloat16,       DType::kBfloat16,     DType::kFloat32,        DType::kFloat64,
    DType::kComplex32,      DType::kComplex64,     DType::kComplex128,   DType::kUint16,         DType::kUint32,
    DType::kUint64,         DType::kFloat8,        DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
    DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0FNU,
};
constexpr DType kOnlyMoved[] = {
    DType::kUint16,         DType::kUint32,     DType::kUint64,         DType::kFloat8,        DType::kFloat8E4M3FN,
    DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0FNU,
};
constexpr ReduceOp kAllOps[] = {
    ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kPremulSum, ReduceOp::kProduct, ReduceOp::kMin,
    ReduceOp::kMax, ReduceOp::kBand, ReduceOp::kBor,       ReduceOp::kBxor,
};

template <class T>
T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Out of line, so that no compiler contracts the reference to FMA.
template <class T>
[[gnu::noinline]] T multiply(T a, T b) {
  return a * b;
}

// 16-bit floats by arithmetic in double, where all of it is exact.
struct Format {
  int mantissa;      // bits stored
  int min_exponent;  // of normal numbers
  std::uint16_t infinity;
  std::uint16_t nan;
};
constexpr Format kHalf{10, -14, 0x7c00, 0x7e00};
constexpr Format kBfloat{7, -126, 0x7f80, 0x7fc0};

float decode(std::uint16_t bits, const Format& format) {
  const int field = (bits & 0x7fff) >> format.mantissa;
  const int fraction = bits & ((1 << format.mantissa) - 1);
  const int special = format.infinity >> format.mantissa;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (field == special) {
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  }
  const int whole = field == 0 ? fraction : fraction + (1 << format.mantissa);
  return sign * static_cast<float>(std::ldexp(whole, std::max(field, 1) - 1 + format.min_exponent - format.mantissa));
}

std::uint16_t encode(float value, const Format& format) {
  if (std::isnan(value)) return format.nan;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::abs(static_cast<double>(value));
  int exponent = format.min_exponent;
  if (magnitude > 0 && std::isfinite(magnitude)) exponent = std::max(exponent, std::ilogb(magnitude));
  // In units of the last place; nearbyint rounds to nearest even. A carry moves into the exponent by itself.
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa - exponent));
  const double bits = units + std::ldexp(exponent - format.min_exponent, format.mantissa);
  return static_cast<std::uint16_t>(sign | (bits >= format.infinity ? format.infinity : static_cast<int>(bits)));
}

template <class T>
T pick(ReduceOp op, T a, T b) {
  if (std::isnan(a)) return a;
  if (std::isnan(b)) return b;
  return op == ReduceOp::kMin ? std::min(a, b) : std::max(a, b);
}

template <class T>
T canonical(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <class T>
T fold_floats(const std::vector<T>& values, ReduceOp op, std::uint32_t divisor) {
  T result = values[0];
  for (std::size_t j = 1; j < values.size(); ++j) {
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      result = pick(op, result, values[j]);
    } else if (op == ReduceOp::kProduct) {
      result = multiply(result, values[j]);
    } else {
      result += values[j];
    }
  }
  return canonical(op == ReduceOp::kAvg ? result / static_cast<T>(divisor) : result);
}

template <class T>
T fold_integers(const std::vector<T>& values, ReduceOp op, std::uint32_t divisor) {
  T result = values[0];
  for (std::size_t j = 1; j < values.size(); ++j) {
    const T value = values[j];
    switch (op) {
      case ReduceOp::kProduct:
        result = static_cast<T>(static_cast<std::uint64_t>(result) * static_cast<std::uint64_t>(value));
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kBand:
        result = static_cast<T>(result & value);
        break;
      case ReduceOp::kBor:
        result = static_cast<T>(result | value);
        break;
      case ReduceOp::kBxor:
        result = static_cast<T>(result ^ value);
        break;
      default:
        result = static_cast<T>(static_cast<std::uint64_t>(result) + static_cast<std::uint64_t>(value));
    }
  }
  if (op != ReduceOp::kAvg) return result;
  return static_cast<T>(static_cast<std::int64_t>(result) / static_cast<std::int64_t>(divisor));
}

bool fold_bools(const std::vector<bool>& values, ReduceOp op) {
  bool result = values[0];
  for (std::size_t j = 1; j < values.size(); ++j) {
    if (op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBor) {
      result = result || values[j];
    } else if (op == ReduceOp::kBxor) {
      result = result != values[j];
    } else {
      result = result && values[j];
    }
  }
  return result;
}

// (real, imaginary) of one element. `T` is what is computed in.
template <class T>
std::complex<T> multiply_all(const std::vector<std::complex<T>>& values) {
  std::complex<T> result = values[0];
  for (std::size_t j = 1; j < values.size(); ++j) {
    const std::complex<T> b = values[j];
    result = {multiply(result.real(), b.real()) - multiply(result.imag(), b.imag()),
              multiply(result.real(), b.imag()) + multiply(result.imag(), b.real())};
  }
  return {canonical(result.real()), canonical(result.imag())};
}

template <class T>
void reference_integers(Bytes& out, const std::vector<Bytes>& in, std::size_t count, ReduceOp op,
                        std::uint32_t divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<T> values;
    for (const Bytes& source : in) values.push_back(load<T>(&source[i * sizeof(T)]));
    const T result = fold_integers(values, op, divisor);
    std::memcpy(&out[i * sizeof(T)], &result, sizeof(T));
  }
}

template <class T>
void reference_floats(Bytes& out, const std::vector<Bytes>& in, std::size_t count, ReduceOp op, std::uint32_t divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<T> values;
    for (const Bytes& source : in) values.push_back(load<T>(&source[i * sizeof(T)]));
    const T result = fold_floats(values, op, divisor);
    std::memcpy(&out[i * sizeof(T)], &result, sizeof(T));
  }
}

void reference_short_floats(Bytes& out, const std::vector<Bytes>& in, std::size_t count, ReduceOp op,
                            std::uint32_t divisor, const Format& format) {
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<float> values;
    for (const Bytes& source : in) values.push_back(decode(load<std::uint16_t>(&source[i * 2]), format));
    const std::uint16_t result = encode(fold_floats(values, op, divisor), format);
    std::memcpy(&out[i * 2], &result, 2);
  }
}

template <class T>
void reference_complex_product(Bytes& out, const std::vector<Bytes>& in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::complex<T>> values;
    for (const Bytes& source : in) values.push_back(load<std::complex<T>>(&source[i * 2 * sizeof(T)]));
    const std::complex<T> result = multiply_all(values);
    std::memcpy(&out[i * 2 * sizeof(T)], &result, sizeof(result));
  }
}

void reference_complex32_product(Bytes& out, const std::vector<Bytes>& in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::complex<float>> values;
    for (const Bytes& source : in) {
      values.emplace_back(decode(load<std::uint16_t>(&source[i * 4]), kHalf),
                          decode(load<std::uint16_t>(&source[i * 4 + 2]), kHalf));
    }
    const std::complex<float> product = multiply_all(values);
    const std::uint16_t result[2] = {encode(product.real(), kHalf), encode(product.imag(), kHalf)};
    std::memcpy(&out[i * 4], result, 4);
  }
}

Bytes reference(const std::vector<Bytes>& in, std::size_t count, const Reduction& r) {
  Bytes out(count * size_of(r.dtype));
  const bool is_copy = in.size() == 1 && (r.op != ReduceOp::kAvg || r.divisor == 1);
  if (is_copy && r.dtype != DType::kBool) {
    std::copy_n(in[0].begin(), out.size(), out.begin());
    return out;
  }
  const bool is_product = r.op == ReduceOp::kProduct;
  switch (r.dtype) {
    case DType::kBool:
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<bool> values;
        for (const Bytes& source : in) values.push_back(source[i] != 0);
        out[i] = fold_bools(values, r.op) ? 1 : 0;
      }
      break;
    case DType::kUint8:
      reference_integers<std::uint8_t>(out, in, count, r.op, r.divisor);
      break;
    case DType::kInt8:
      reference_integers<std::int8_t>(out, in, count, r.op, r.divisor);
      break;
    case DType::kInt16:
      reference_integers<std::int16_t>(out, in, count, r.op, r.divisor);
      break;
    case DType::kInt32:
      reference_integers<std::int32_t>(out, in, count, r.op, r.divisor);
      break;
    case DType::kInt64:
      reference_integers<std::int64_t>(out, in, count, r.op, r.divisor);
      break;
    case DType::kFloat16:
      reference_short_floats(out, in, count, r.op, r.divisor, kHalf);
      break;
    case DType::kBfloat16:
      reference_short_floats(out, in, count, r.op, r.divisor, kBfloat);
      break;
    case DType::kFloat32:
      reference_floats<float>(out, in, count, r.op, r.divisor);
      break;
    case DType::kFloat64:
      reference_floats<double>(out, in, count, r.op, r.divisor);
      break;
    case DType::kComplex32:
      if (is_product) {
        reference_complex32_product(out, in, count);
      } else {
        reference_short_floats(out, in, 2 * count, r.op, r.divisor, kHalf);
      }
      break;
    case DType::kComplex64:
      if (is_product) {
        reference_complex_product<float>(out, in, count);
      } else {
        reference_floats<float>(out, in, 2 * count, r.op, r.divisor);
      }
      break;
    case DType::kComplex128:
      if (is_product) {
        reference_complex_product<double>(out, in, count);
      } else {
        reference_floats<double>(out, in, 2 * count, r.op, r.divisor);
      }
      break;
    default:
      ADD_FAILURE() << "no reference";
  }
  return out;
}

template <class T>
void append(Bytes& bytes, T value) {
  const auto* begin = reinterpret_cast<const unsigned char*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof(T));
}

// Half of it numbers of ordinary size, the rest any bit pattern or a special one.
template <class T>
void append_float(Bytes& bytes, std::mt19937_64& random, T ordinary, const std::vector<T>& specials, std::size_t size) {
  const std::uint64_t kind = random() % 8;
  if (kind < 4) return append(bytes, ordinary);
  if (kind < 6) return append(bytes, specials[random() % specials.size()]);
  const std::uint64_t pattern = random();
  const auto* begin = reinterpret_cast<const unsigned char*>(&pattern);
  bytes.insert(bytes.end(), begin, begin + size);
}

template <class T>
std::vector<T> specials_of() {
  using Limits = std::numeric_limits<T>;
  return {T{0},
          -T{0},
          Limits::infinity(),
          -Limits::infinity(),
          Limits::quiet_NaN(),
          Limits::max(),
          Limits::lowest(),
          Limits::min(),
          -Limits::min(),
          -Limits::quiet_NaN(),
          Limits::denorm_min(),
          -Limits::denorm_min(),
          Limits::signaling_NaN(),
          T{1},
          T{-1}};
}

Bytes random_bytes(std::mt19937_64& random, DType dtype, std::size_t count) {
  static const std::vector<std::uint16_t> kHalves = {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x7bff, 0xfbff,
                                                     0x7c00, 0xfc00, 0x7c01, 0x7e12, 0xfe00, 0x3c00, 0x3c01};
  static const std::vector<std::uint16_t> kBfloats = {0,      0x8000, 1,      0x8001, 0x7f,   0x80,   0x7f7f, 0xff7f,
                                                      0x7f80, 0xff80, 0x7f81, 0x7fd2, 0xffc0, 0x3f80, 0x3f81};
  const std::size_t bytes = count * size_of(dtype);
  std::normal_distribution<float> normal;
  Bytes result;
  while (result.size() < bytes) {
    const float ordinary = normal(random);
    switch (dtype) {
      case DType::kBool:
        result.push_back(static_cast<unsigned char>(random() % 4 == 0 ? random() : random() % 2));
        break;
      case DType::kFloat16:
      case DType::kComplex32:
        append_float(result, random, encode(ordinary, kHalf), kHalves, 2);
        break;
      case DType::kBfloat16:
        append_float(result, random, encode(ordinary, kBfloat), kBfloats, 2);
        break;
      case DType::kFloat32:
      case DType::kComplex64:
        append_float(result, random, ordinary, specials_of<float>(), 4);
        break;
      case DType::kFloat64:
      case DType::kComplex128:
        append_float(result, random, static_cast<double>(ordinary), specials_of<double>(), 8);
        break;
      default:
        result.push_back(static_cast<unsigned char>(random()));
    }
  }
  return result;
}

std::string hex(const Bytes& bytes, std::size_t begin, std::size_t size) {
  static const char* const kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = std::min(begin + size, bytes.size()); i-- > begin;) {
    text += {kDigits[bytes[i] >> 4], kDigits[bytes[i] & 15]};
  }
  return text;
}

void expect_same(const Bytes& actual, const Bytes& expected, const std::vector<Bytes>& in, const Reduction& r) {
  if (actual == expected) return;
  const std::size_t at = static_cast<std::size_t>(
      std::mismatch(actual.begin(), actual.end(), expected.begin(), expected.end()).first - actual.begin());
  const std::size_t size = size_of(r.dtype);
  const std::size_t element = at / size * size;
  std::string sources;
  for (const Bytes& source : in) sources += " " + hex(source, element, size);
  ADD_FAILURE() << kernel_name() << " " << name_of(r.op) << " " << name_of(r.dtype) << " k=" << in.size()
                << " divisor=" << r.divisor << " bytes=" << expected.size() << " at element " << element / size
                << ": got " << hex(actual, element, size) << ", expected " << hex(expected, element, size)
                << ", sources" << sources;
}

// The result by the kernel in use. Its buffers start at odd addresses; nothing beyond the result may change.
Bytes run(const std::vector<Bytes>& in, std::size_t count, const Reduction& r, int in_place = -1) {
  const std::size_t bytes = count * size_of(r.dtype);
  std::vector<Bytes> shifted;
  for (std::size_t j = 0; j < in.size(); ++j) {
    Bytes source(j % 3, 0xcc);
    source.insert(source.end(), in[j].begin(), in[j].begin() + static_cast<std::ptrdiff_t>(bytes));
    source.resize(source.size() + 64, 0xcc);
    shifted.push_back(std::move(source));
  }
  const std::vector<Bytes> before = shifted;
  std::vector<const void*> sources;
  for (std::size_t j = 0; j < in.size(); ++j) sources.push_back(shifted[j].data() + j % 3);
  Bytes separate(bytes + 64, 0xcc);
  const auto place = static_cast<std::size_t>(in_place);
  unsigned char* dst = in_place < 0 ? separate.data() : shifted[place].data() + place % 3;
  reduce(dst, sources.data(), sources.size(), count, r);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(dst[bytes + i], 0xcc) << "written beyond the end";
  for (std::size_t j = 0; j < in.size(); ++j) {
    EXPECT_TRUE(static_cast<int>(j) == in_place || shifted[j] == before[j]) << "source " << j << " changed";
  }
  return Bytes(dst, dst + bytes);
}

template <class T>
std::vector<T> reduce_values(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& in,
                             std::uint32_t divisor = 1) {
  std::vector<const void*> sources;
  for (const std::vector<T>& source : in) sources.push_back(source.data());
  std::vector<T> out(in[0].size());
  reduce(out.data(), sources.data(), sources.size(), out.size(), {dtype, op, divisor});
  return out;
}

class Reduce : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { force_kernel(GetParam()); }
  void TearDown() override { force_kernel(available_kernels().front()); }
};

TEST_P(Reduce, MatchesReferenceForAllTypesOpsAndSizes) {
  std::mt19937_64 random(1);
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kAllOps) {
      if (!is_supported(dtype, op)) continue;
      for (std::size_t k = 1; k <= 8; ++k) {
        for (const std::size_t count : {0U, 1U, 2U, 3U, 7U, 15U, 17U, 31U, 64U, 67U, 133U, 259U}) {
          std::vector<Bytes> in;
          for (std::size_t j = 0; j < k; ++j) in.push_back(random_bytes(random, dtype, count));
          const auto divisor = static_cast<std::uint32_t>(op == ReduceOp::kAvg && count % 4 != 1 ? k : 1);
          const Reduction r{dtype, op, divisor};
          expect_same(run(in, count, r), reference(in, count, r), in, r);
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Reduce, WorksInPlaceOnAnySource) {
  std::mt19937_64 random(2);
  constexpr std::size_t kCount = 301;
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kAllOps) {
      if (!is_supported(dtype, op)) continue;
      for (const std::size_t k : {1U, 2U, 3U, 5U}) {
        std::vector<Bytes> in;
        for (std::size_t j = 0; j < k; ++j) in.push_back(random_bytes(random, dtype, kCount));
        const Reduction r{dtype, op, static_cast<std::uint32_t>(k)};
        const Bytes expected = run(in, kCount, r);
        for (std::size_t j = 0; j < k; ++j) expect_same(run(in, kCount, r, static_cast<int>(j)), expected, in, r);
      }
    }
  }
}

// Ranks run on different CPUs, and must agree.
TEST_P(Reduce, GivesTheBitsOfGenericOnRandomPatterns) {
  std::mt19937_64 random(3);
  constexpr std::size_t kCount = 20011;
  for (const DType dtype : kAllDTypes) {
    std::vector<Bytes> in(3);
    for (Bytes& source : in) {
      for (std::size_t i = 0; i < kCount * size_of(dtype); ++i) source.push_back(static_cast<unsigned char>(random()));
    }
    for (const ReduceOp op : kAllOps) {
      if (!is_supported(dtype, op)) continue;
      for (const std::size_t k : {2U, 3U}) {
        const std::vector<Bytes> some(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(k));
        const Reduction r{dtype, op, 3};
        force_kernel("generic");
        const Bytes expected = run(some, kCount, r);
        force_kernel(GetParam());
        expect_same(run(some, kCount, r), expected, some, r);

        const std::size_t before = 16 * (k - 1);  // not aligned to a line
        Bytes streamed(before + expected.size() + 64, 7U);
        std::vector<const void*> sources;
        for (const Bytes& source : some) sources.push_back(source.data());
        reduce_streamed(streamed.data() + before, sources.data(), k, kCount, r);
        const auto end = streamed.begin() + static_cast<std::ptrdiff_t>(before + expected.size());
        EXPECT_TRUE(
            std::equal(expected.begin(), expected.end(), streamed.begin() + static_cast<std::ptrdiff_t>(before)))
            << name_of(dtype) << " " << name_of(op);
        EXPECT_EQ(std::count(end, streamed.end(), 7U), 64);
      }
    }
  }
}

TEST_P(Reduce, ConvertsEvery16BitFloatThereAndBack) {
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    const Format& format = dtype == DType::kFloat16 ? kHalf : kBfloat;
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const std::vector<std::uint16_t> ones(all.size(), encode(1.0F, format));
    const auto same = reduce_values<std::uint16_t>(dtype, ReduceOp::kProduct, {all, ones});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool is_nan = (i & 0x7fff) > format.infinity;
      ASSERT_EQ(same[i], is_nan ? format.nan : all[i]) << name_of(dtype) << " " << i;
    }
  }
}

TEST_P(Reduce, RoundsTiesOf16BitFloatsToEvenAndOnlyOnce) {
  const auto sum = [](DType dtype, const std::vector<float>& values) {
    const Format& format = dtype == DType::kFloat16 ? kHalf : kBfloat;
    std::vector<std::vector<std::uint16_t>> in;
    for (const float value : values) in.push_back({encode(value, format)});
    return decode(reduce_values<std::uint16_t>(dtype, ReduceOp::kSum, in)[0], format);
  };
  EXPECT_EQ(sum(DType::kFloat16, {2048, 1}), 2048);
  EXPECT_EQ(sum(DType::kFloat16, {2048, 3}), 2052);
  EXPECT_EQ(sum(DType::kFloat16, {-2048, -3}), -2052);
  EXPECT_EQ(sum(DType::kFloat16, {2048, 1, 1}), 2050);
  EXPECT_EQ(sum(DType::kFloat16, {65504, 15.9921875F}), 65504);
  EXPECT_EQ(sum(DType::kFloat16, {65504, 16}), std::numeric_limits<float>::infinity());
  EXPECT_EQ(sum(DType::kFloat16, {65504, 65504, -65504}), 65504);
  EXPECT_EQ(sum(DType::kFloat16, {std::ldexp(1.0F, -24), std::ldexp(1.0F, -24)}), std::ldexp(1.0F, -23));
  EXPECT_EQ(sum(DType::kBfloat16, {256, 1}), 256);
  EXPECT_EQ(sum(DType::kBfloat16, {256, 3}), 260);
  EXPECT_EQ(sum(DType::kBfloat16, {256, 1, 1}), 258);
  EXPECT_EQ(sum(DType::kBfloat16, {std::ldexp(1.0F, -133), std::ldexp(1.0F, -133)}), std::ldexp(1.0F, -132));
}

TEST_P(Reduce, AveragesBeforeRoundingAndTruncatesIntegers) {
  const std::vector<std::vector<std::int32_t>> integers = {{7, -7, 2147483647}, {0, 0, 1}};
  EXPECT_EQ(reduce_values(DType::kInt32, ReduceOp::kAvg, integers, 2), (std::vector<std::int32_t>{3, -3, -1073741824}));
  // Rounded before the division this would be 1024.
  const std::vector<std::vector<std::uint16_t>> halves = {{encode(2048, kHalf)}, {encode(1, kHalf)}};
  EXPECT_EQ(decode(reduce_values(DType::kFloat16, ReduceOp::kAvg, halves, 2)[0], kHalf), 1024);
  const std::vector<std::vector<std::uint16_t>> large = {{encode(65504, kHalf)}, {encode(65504, kHalf)}};
  EXPECT_EQ(decode(reduce_values(DType::kFloat16, ReduceOp::kAvg, large, 2)[0], kHalf), 65504);
  EXPECT_EQ(reduce_values<float>(DType::kFloat32, ReduceOp::kAvg, {{6}, {9}}, 1)[0], 15);
}

TEST_P(Reduce, ScalesAllTypes) {
  std::mt19937_64 random(4);
  constexpr std::size_t kCount = 203;
  for (const double factor : {1.0, 0.1, -3.0, 1e-30}) {
    Bytes bytes = random_bytes(random, DType::kFloat32, kCount);
    const Bytes before = bytes;
    scale(bytes.data(), bytes.data(), kCount, DType::kFloat32, factor);
    for (std::size_t i = 0; i < kCount; ++i) {
      const float expected = canonical(load<float>(&before[4 * i]) * static_cast<float>(factor));
      ASSERT_EQ(load<std::uint32_t>(&bytes[4 * i]), load<std::uint32_t>(&expected)) << factor;
    }

    const Bytes doubles = random_bytes(random, DType::kComplex128, kCount);
    Bytes scaled(doubles.size());
    scale(scaled.data(), doubles.data(), kCount, DType::kComplex128, factor);
    for (std::size_t i = 0; i < 2 * kCount; ++i) {
      const double expected = canonical(load<double>(&doubles[8 * i]) * factor);
      ASSERT_EQ(load<std::uint64_t>(&scaled[8 * i]), load<std::uint64_t>(&expected)) << factor;
    }

    for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
      const Format& format = dtype == DType::kFloat16 ? kHalf : kBfloat;
      const Bytes shorts = random_bytes(random, dtype, kCount);
      Bytes out(shorts.size());
      scale(out.data(), shorts.data(), kCount, dtype, factor);
      for (std::size_t i = 0; i < kCount; ++i) {
        const float value = decode(load<std::uint16_t>(&shorts[2 * i]), format);
        ASSERT_EQ(load<std::uint16_t>(&out[2 * i]), encode(value * static_cast<float>(factor), format)) << factor;
      }
    }
  }

  const auto scale_one = [](auto value, DType dtype, double factor) {
    scale(&value, &value, 1, dtype, factor);
    return value;
  };
  EXPECT_EQ(scale_one(std::int64_t{9007199254740993}, DType::kInt64, 1.0), 9007199254740993);
  EXPECT_EQ(scale_one(std::int32_t{-7}, DType::kInt32, 0.5), -3);
  EXPECT_EQ(scale_one(std::int8_t{100}, DType::kInt8, 2.0), -56);
  EXPECT_EQ(scale_one(std::int8_t{100}, DType::kInt8, 2.5), 127);
  EXPECT_EQ(scale_one(std::int8_t{-100}, DType::kInt8, 2.5), -128);
  EXPECT_EQ(scale_one(std::uint8_t{100}, DType::kUint8, 2.551), 255);
  EXPECT_EQ(scale_one(std::uint8_t{100}, DType::kUint8, -0.5), 0);
  EXPECT_EQ(scale_one(std::int64_t{5}, DType::kInt64, 1e300), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(scale_one(std::int16_t{5}, DType::kInt16, std::nan("")), 0);
}

TEST_P(Reduce, CopiesAnyNumberOfBytesAtAnyAlignment) {
  std::mt19937_64 random(4);
  for (const std::size_t count : {0U, 1U, 2047U, 2048U, 2049U, 70000U, (4U << 20) - 3, (4U << 20) + 3}) {
    for (const auto& [from, to] : {std::pair{0U, 0U}, {16U, 0U}, {63U, 1U}, {16U, 64U}}) {
      for (const auto copy : {copy_bytes, copy_in_vectors, copy_streamed}) {
        const Bytes source = random_bytes(random, DType::kUint8, from + count);
        Bytes expected(to + count + 64, 7U);
        Bytes target = expected;
        std::copy(source.begin() + from, source.end(), expected.begin() + to);
        copy(target.data() + to, source.data() + from, count);
        EXPECT_EQ(target, expected);
      }
    }
  }
}

#if defined(__x86_64__)
// torch.set_flush_denormal(True) changes the mode of the calling thread, not of the progress thread.
TEST_P(Reduce, KeepsDenormalsWhateverTheThreadDoes) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);
  const auto sums = reduce_values<float>(DType::kFloat32, ReduceOp::kSum, {{tiny}, {tiny}});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(load<std::uint32_t>(sums.data()), 2U);
  EXPECT_EQ(after & 0x8040U, 0x8040U);
}
#elif defined(__aarch64__)
TEST_P(Reduce, KeepsDenormalsWhateverTheThreadDoes) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  constexpr std::uint64_t kFlushToZero = 1U << 24;
  std::uint64_t saved = 0;
  std::uint64_t after = 0;
  asm volatile("mrs %0, fpcr" : "=r"(saved));
  asm volatile("msr fpcr, %0" ::"r"(saved | kFlushToZero));
  const auto sums = reduce_values<float>(DType::kFloat32, ReduceOp::kSum, {{tiny}, {tiny}});
  asm volatile("mrs %0, fpcr" : "=r"(after));
  asm volatile("msr fpcr, %0" ::"r"(saved));
  EXPECT_EQ(load<std::uint32_t>(sums.data()), 2U);
  EXPECT_EQ(after & kFlushToZero, kFlushToZero);
}
#endif

INSTANTIATE_TEST_SUITE_P(Kernels, Reduce, testing::ValuesIn(available_kernels()),
                         [](const auto& info) { return info.param; });

TEST(Kernel, IsTheBestOneUnlessForced) {
  const std::vector<std::string> names = available_kernels();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "generic");
  EXPECT_EQ(kernel_name(), names.front());
  force_kernel("generic");
  EXPECT_STREQ(kernel_name(), "generic");
  force_kernel(names.front());
  EXPECT_EQ(kernel_name(), names.front());
#if defined(__aarch64__)
  EXPECT_EQ(names.front(), "neon");
#endif
}

TEST(Kernel, UnknownNameListsWhatThisCpuHas) {
  try {
    force_kernel("sse9");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("sse9"), std::string::npos);
    for (const std::string& name : available_kernels()) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

TEST(DTypeTest, SizesNamesAndSupport) {
  EXPECT_EQ(size_of(DType::kBool), 1U);
  EXPECT_EQ(size_of(DType::kBfloat16), 2U);
  EXPECT_EQ(size_of(DType::kComplex32), 4U);
  EXPECT_EQ(size_of(DType::kComplex128), 16U);
  EXPECT_STREQ(name_of(DType::kBfloat16), "bfloat16");
  std::set<std::string> names;
  for (const DType dtype : kAllDTypes) {
    names.insert(name_of(dtype));
    EXPECT_NE(size_of(dtype), 0U) << name_of(dtype);
  }
  for (const DType dtype : {DType::kFloat8, DType::kFloat8E5M2, DType::kFloat8E8M0FNU}) {
    EXPECT_EQ(size_of(dtype), 1U) << name_of(dtype);
  }
  EXPECT_EQ(names.size(), std::size(kAllDTypes));
  EXPECT_STREQ(name_of(ReduceOp::kPremulSum), "PREMUL_SUM");
  for (const ReduceOp op : kAllOps) {
    for (const DType dtype : kOnlyMoved) EXPECT_FALSE(is_supported(dtype, op));
    EXPECT_TRUE(is_supported(DType::kInt32, op));
    const bool is_bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
    EXPECT_EQ(is_supported(DType::kFloat16, op), !is_bitwise);
    EXPECT_EQ(is_supported(DType::kBool, op), op != ReduceOp::kAvg && op != ReduceOp::kPremulSum);
    EXPECT_EQ(is_supported(DType::kComplex64, op), !is_bitwise && op != ReduceOp::kMin && op != ReduceOp::kMax);
  }
}

}  // namespace
}  // namespace smdp
