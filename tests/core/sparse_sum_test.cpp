// Sums of sparse tensors against sums in a map, on one host and on several, for rows that are gathered and for those
// that are summed densely.
#include "smdp/sparse_sum.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collectives/sparse_rows.h"
#include "cost/sparse_cost.h"
#include "ranks.h"
#include "smdp/error.h"

namespace smdp::test {
namespace {

constexpr std::int64_t kColumns = 3;
constexpr std::size_t kWidth = 5;  // elements of a row

// Of a tensor of shape [rows, kColumns, kWidth], of which the first two dimensions are sparse.
struct Input {
  std::vector<std::int64_t> indices;
  std::vector<double> values;
  std::size_t count = 0;
};

// Unsorted, with places that come twice and places that several ranks have. Whole numbers, which sum exactly.
Input input_of(int rank, std::int64_t rows, std::size_t count) {
  Input input;
  input.count = count;
  std::uint64_t state = 977 * static_cast<std::uint64_t>(rank + 1);
  std::vector<std::int64_t> second;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    input.indices.push_back(static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(rows)));
    second.push_back(static_cast<std::int64_t>((state >> 20) % kColumns));
    for (std::size_t j = 0; j < kWidth; ++j) input.values.push_back(static_cast<double>((state >> 40) % 1000 + j));
  }
  input.indices.insert(input.indices.end(), second.begin(), second.end());
  return input;
}

using Places = std::map<std::int64_t, std::vector<double>>;

void add(Places& sum, const Input& input) {
  for (std::size_t i = 0; i < input.count; ++i) {
    auto& row = sum[input.indices[i] * kColumns + input.indices[input.count + i]];
    row.resize(kWidth);
    for (std::size_t j = 0; j < kWidth; ++j) row[j] += input.values[i * kWidth + j];
  }
}

std::shared_ptr<SparseSum> sum_of(const Input& input, std::int64_t rows) {
  return std::make_shared<SparseSum>(
      SparseForm{{rows, kColumns, static_cast<std::int64_t>(kWidth)}, 2, DType::kFloat64},
      SparseRows{input.indices.data(), input.values.data(), input.count});
}

Places places_of(const SparseSum& sum) {
  std::vector<std::int64_t> indices(2 * sum.count());
  std::vector<double> values(kWidth * sum.count());
  sum.write(indices.data(), values.data());
  Places places;
  std::int64_t last = -1;
  for (std::size_t i = 0; i < sum.count(); ++i) {
    const std::int64_t place = indices[i] * kColumns + indices[sum.count() + i];
    EXPECT_GT(place, last);
    last = place;
    places[place].assign(values.begin() + static_cast<std::ptrdiff_t>(i * kWidth),
                         values.begin() + static_cast<std::ptrdiff_t>((i + 1) * kWidth));
  }
  return places;
}

class SparseSums : public testing::TestWithParam<Layout> {};

TEST_P(SparseSums, OfAnyNumberOfRows) {
  run(GetParam(), [](Group& group) {
    // Few of many rows are gathered; of the small tensor there are more than it has; some ranks have nothing.
    for (const std::int64_t rows : {1'000'000, 20}) {
      for (const std::size_t count : {0, 7, 700}) {
        Places wanted;
        const auto count_of = [&](int rank) { return rank % 2 == 0 ? count : count / 7; };
        for (int rank = 0; rank < group.size(); ++rank) add(wanted, input_of(rank, rows, count_of(rank)));
        const Input own = input_of(group.rank(), rows, count_of(group.rank()));
        const auto sum = sum_of(own, rows);
        group.all_reduce_sparse(sum, ReduceOp::kSum);
        EXPECT_FALSE(sum->is_dense());
        ASSERT_EQ(places_of(*sum), wanted) << rows << " rows, " << count;

        Call call;
        call.async = true;
        const auto mean = sum_of(own, rows);
        group.all_reduce_sparse(mean, ReduceOp::kAvg, 1, call)->wait();
        for (auto& [place, row] : wanted) {
          for (double& value : row) value /= group.size();
        }
        ASSERT_EQ(places_of(*mean), wanted);
      }
    }
  });
}

TEST_P(SparseSums, OfWhichOneRankHasAll) {
  run(GetParam(), [](Group& group) {
    constexpr std::int64_t kRows = 4;
    const Input input = input_of(group.rank(), kRows, 3);
    std::vector<double> all(kRows * kColumns * kWidth, group.rank() == 0 ? 10 : 0);
    std::vector<double> wanted(all.size(), 10);
    Places of_others;
    for (int rank = 1; rank < group.size(); ++rank) add(of_others, input_of(rank, kRows, 3));
    for (const auto& [place, row] : of_others) {
      for (std::size_t j = 0; j < kWidth; ++j) wanted[static_cast<std::size_t>(place) * kWidth + j] += row[j];
    }
    auto sum = sum_of(input, kRows);
    if (group.rank() == 0) {
      sum = std::make_shared<SparseSum>(SparseForm{{kRows, kColumns, kWidth}, 2, DType::kFloat64}, all.data());
    }
    group.all_reduce_sparse(sum, ReduceOp::kSum);
    ASSERT_TRUE(sum->is_dense());
    std::vector<double> values(all.size());
    sum->write(nullptr, values.data());
    ASSERT_EQ(values, wanted);
  });
}

// Rounding tells orders apart: first a rank's own rows, in their order, then rank by rank.
TEST_P(SparseSums, HaveTheSameBitsAsADenseSum) {
  if (GetParam().size() > 1 && world_size(GetParam()) > 2) GTEST_SKIP() << "a dense sum adds up each host's first";
  run(GetParam(), [](Group& group) {
    const std::vector<std::int64_t> indices{3, 1, 3, 0};
    std::vector<float> values;
    for (std::size_t i = 0; i < indices.size(); ++i)
      values.push_back(1.0F / static_cast<float>(3 * group.rank() + i + 1));
    std::vector<float> whole(4);
    for (std::size_t i = 0; i < indices.size(); ++i) whole[static_cast<std::size_t>(indices[i])] += values[i];
    group.all_reduce(whole.data(), whole.data(), std::vector<std::int64_t>{4}, DType::kFloat32, ReduceOp::kAvg);
    for (const std::int64_t rows : {4, 1000}) {  // summed densely, and gathered
      const auto sum = std::make_shared<SparseSum>(SparseForm{{rows}, 1, DType::kFloat32},
                                                   SparseRows{indices.data(), values.data(), indices.size()});
      group.all_reduce_sparse(sum, ReduceOp::kAvg);
      ASSERT_EQ(sum->count(), 3);
      std::vector<std::int64_t> places(3);
      std::vector<float> mean(3);
      sum->write(places.data(), mean.data());
      EXPECT_EQ(places, (std::vector<std::int64_t>{0, 1, 3}));
      EXPECT_EQ(mean, (std::vector<float>{whole[0], whole[1], whole[3]}));
    }
  });
}

TEST_P(SparseSums, OfOtherFormsOnOtherRanksAreMismatches) {
  const auto message_of = [&](const auto& call) {
    std::string message;
    try {
      run(GetParam(), [&](Group& group) { call(group, group.rank() == 0); });
    } catch (const MismatchError& error) {
      message = error.what();
    }
    return message;
  };
  const std::int64_t index = 0;
  const double value = 1;
  const auto reduce = [&](Group& group, const SparseForm& form) {
    group.all_reduce_sparse(std::make_shared<SparseSum>(form, SparseRows{&index, &value, 0}), ReduceOp::kSum);
  };
  const auto has_both = [](const std::string& message, const std::string& one, const std::string& other) {
    return message.find(one) != std::string::npos && message.find(other) != std::string::npos;
  };
  std::string text =
      message_of([&](Group& group, bool is_first) { reduce(group, {{is_first ? 4 : 5, 2}, 1, DType::kFloat64}); });
  EXPECT_PRED3(has_both, text, "all_reduce_sparse #1 float64[4, 2] SUM", "float64[5, 2]");
  text = message_of([&](Group& group, bool is_first) { reduce(group, {{4, 2}, is_first ? 1U : 2U, DType::kFloat64}); });
  EXPECT_PRED3(has_both, text, "with 1 sparse dimension", "with 2 sparse dimensions");
  text = message_of([&](Group& group, bool is_first) {
    if (is_first) return reduce(group, {{1}, 1, DType::kFloat64});
    double dense = 1;
    group.all_reduce(&dense, &dense, std::vector<std::int64_t>{1}, DType::kFloat64, ReduceOp::kSum);
  });
  EXPECT_PRED3(has_both, text, "all_reduce_sparse #1 float64[1]", "called all_reduce #1 float64[1]");
}

#if defined(__SANITIZE_THREAD__)
TEST_P(SparseSums, AreOfOneOperationEach) {
  run(GetParam(), [](Group& group) {
    const Input input = input_of(group.rank(), 100, 3);
    const std::shared_ptr<SparseSum> sum = sum_of(input, 100);
    group.all_reduce_sparse(sum, ReduceOp::kPremulSum, 0.5);
    EXPECT_THROW(group.all_reduce_sparse(sum, ReduceOp::kPremulSum, 0.5), InvalidArgument);
    group.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, SparseSums, testing::Values(Layout{2}, Layout{2, 1}));
#else
INSTANTIATE_TEST_SUITE_P(Layouts, SparseSums,
                         testing::Values(Layout{2}, Layout{4}, Layout{1, 1}, Layout{2, 1}, Layout{2, 3, 2}));
#endif

TEST(SparseSum, RefusesWhatItCannotAddUp) {
  const std::vector<std::int64_t> indices{0, 4};
  const std::vector<float> values{1, 2};
  const SparseRows rows{indices.data(), values.data(), 2};
  EXPECT_THROW(SparseSum({{4}, 1, DType::kFloat32}, rows), InvalidArgument);
  constexpr std::int64_t kHuge = std::int64_t{1} << 32;
  EXPECT_THROW(SparseSum({{kHuge, kHuge}, 2, DType::kFloat32}, SparseRows{}), InvalidArgument);
  run({1}, [&](Group& group) {
    const auto sum = std::make_shared<SparseSum>(SparseForm{{5}, 1, DType::kFloat32}, rows);
    EXPECT_THROW(group.all_reduce_sparse(sum, ReduceOp::kMax), InvalidArgument);
  });
}

TEST(SparseRows, AreSortedAndKeepTheOrderOfEqualPlaces) {
  for (const std::uint64_t places : {std::uint64_t{10}, std::uint64_t{3'000'000}, std::uint64_t{1} << 62}) {
    std::vector<std::byte> memory(1000);
    std::vector<Row> rows;
    for (std::size_t i = 0; i < memory.size(); ++i) rows.push_back({(i * 0x9e3779b97f4a7c15) % places, &memory[i]});
    sort_rows(rows, places);
    for (std::size_t i = 1; i < rows.size(); ++i) {
      ASSERT_LE(rows[i - 1].place, rows[i].place);
      const bool is_same = rows[i - 1].place == rows[i].place;
      ASSERT_TRUE(!is_same || rows[i - 1].values < rows[i].values);
    }
  }
}

TEST(SparseCost, GathersWhatIsLess) {
  EXPECT_TRUE(cost::gathers_rows(8192, {1'000'000, 256}));
  EXPECT_TRUE(cost::gathers_rows(0, {0, 4}));
  EXPECT_FALSE(cost::gathers_rows(3 * 1000, {1000, 256}));
  // With its place a row of one float is three times as long.
  EXPECT_TRUE(cost::gathers_rows(600, {1000, 4}));
  EXPECT_FALSE(cost::gathers_rows(700, {1000, 4}));
}

}  // namespace
}  // namespace smdp::test
