// A mismatch that all ranks hear of leaves the group as it was: the next call works, and gives right values.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranks.h"
#include "smdp/error.h"
#include "smdp/sparse_sum.h"

namespace smdp::test {
namespace {

enum class Kind : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllReduceSparse,
  kAllToAll,
  kGather
};
constexpr std::size_t kKinds = 8;

// One call of one rank. Element i of what rank r gives in step s is value(r, s).
struct Plan {
  Kind kind = Kind::kAllReduce;
  std::size_t count = 1;  // elements of a tensor, or of a block
  int root = 0;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

float value(int rank, std::size_t step) { return static_cast<float>(rank + 1 + static_cast<int>(step % 5)); }

// Its buffers, and what they must hold afterwards.
class Started {
 public:
  Started(Group& group, const Plan& plan, std::size_t step, bool is_async)
      : plan_(plan),
        rank_(group.rank()),
        size_(static_cast<std::size_t>(group.size())),
        step_(step),
        in_(plan.count * size_, value(rank_, step)),
        out_(plan.count * size_, -1) {
    Call call;
    call.async = is_async;
    handle_ = start(group, call);
  }

  void wait() {
    if (handle_) handle_->wait();
    if (sparse_) sparse_->write(indices_.data(), out_.data());
  }

  // Of a call that all ranks made alike. Values are small whole numbers in the bits of either dtype's sum.
  void check() const {
    float sum = 0;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      sum = plan_.op == ReduceOp::kSum ? sum + value(static_cast<int>(rank), step_)
                                       : std::max(sum, value(static_cast<int>(rank), step_));
    }
    const float of_root = value(plan_.root, step_);
    switch (plan_.kind) {
      case Kind::kAllReduce:
        return expect(0, 1, sum);
      case Kind::kReduce:
        return expect(0, rank_ == plan_.root ? 1 : 0, sum);
      case Kind::kBroadcast:
        return expect(0, 1, of_root);
      case Kind::kReduceScatter:
      case Kind::kAllReduceSparse:
        return expect(0, 1, sum);
      case Kind::kAllGather:
      case Kind::kAllToAll:
      case Kind::kGather:
        for (std::size_t rank = 0; rank < size_; ++rank) {
          const bool is_here = plan_.kind != Kind::kGather || rank_ == plan_.root;
          expect(rank, is_here ? 1 : 0, value(static_cast<int>(rank), step_));
        }
    }
  }

 private:
  void expect(std::size_t block, std::size_t blocks, float wanted) const {
    for (std::size_t i = block * plan_.count; i < (block + blocks) * plan_.count; ++i) {
      ASSERT_EQ(out_[i], wanted) << "step " << step_ << ", rank " << rank_ << ", element " << i;
    }
  }

  std::vector<Buffer> blocks_of(std::vector<float>& all) const {
    std::vector<Buffer> blocks;
    for (std::size_t rank = 0; rank < size_; ++rank) blocks.push_back({all.data() + rank * plan_.count, plan_.count});
    return blocks;
  }

  Group::Handle start(Group& group, const Call& call) {
    const std::array<std::int64_t, 1> shape{static_cast<std::int64_t>(plan_.count)};
    const Buffer first{out_.data(), plan_.count};
    std::vector<ConstBuffer> sources;
    for (const Buffer& block : blocks_of(in_)) sources.push_back({block.data, block.count});
    switch (plan_.kind) {
      case Kind::kAllReduce:
        return group.all_reduce(in_.data(), out_.data(), shape, plan_.dtype, plan_.op, 1.0, call);
      case Kind::kReduce:
        return group.reduce(in_.data(), out_.data(), shape, plan_.dtype, plan_.op, plan_.root, 1.0, call);
      case Kind::kBroadcast:
        if (rank_ == plan_.root) out_ = in_;
        return group.broadcast(out_.data(), shape, plan_.dtype, plan_.root, call);
      case Kind::kAllGather:
        return group.all_gather(sources.front(), blocks_of(out_), plan_.dtype, call);
      case Kind::kReduceScatter:
        return group.reduce_scatter(sources, first, plan_.dtype, plan_.op, 1.0, call);
      case Kind::kAllReduceSparse: {
        indices_.resize(plan_.count);
        std::iota(indices_.begin(), indices_.end(), 0);
        const SparseRows rows{indices_.data(), in_.data(), plan_.count, true};
        sparse_ = std::make_shared<SparseSum>(SparseForm{{shape[0]}, 1, plan_.dtype}, rows);
        return group.all_reduce_sparse(sparse_, ReduceOp::kSum, 1.0, call);
      }
      case Kind::kAllToAll:
        return group.all_to_all(sources, blocks_of(out_), plan_.dtype, call);
      case Kind::kGather:
        return group.gather(sources.front(), blocks_of(out_), plan_.dtype, plan_.root, call);
    }
    return nullptr;
  }

  Plan plan_;
  int rank_;
  std::size_t size_;
  std::size_t step_;
  std::vector<float> in_;
  std::vector<float> out_;
  std::vector<std::int64_t> indices_;
  std::shared_ptr<SparseSum> sparse_;
  Group::Handle handle_;
};

// What all ranks call in every step, drawn alike by all of them, and by whom it is called otherwise.
class Script {
 public:
  Script(unsigned seed, const Group& group)
      : random_(seed), size_(group.size()), has_one_host_(group.hosts().size() == 1) {}

  struct Step {
    Plan plan;
    Plan other;
    int odd = -1;  // the rank that makes the other call; -1: none
  };

  Step next() {
    Step step;
    step.plan.kind = static_cast<Kind>(draw(kKinds));
    step.plan.count = std::array<std::size_t, 4>{1, 17, 1000, 20'000}[draw(4)];
    step.plan.root = static_cast<int>(draw(static_cast<std::size_t>(size_)));
    step.plan.op = draw(2) == 0 || step.plan.kind == Kind::kAllReduceSparse ? ReduceOp::kSum : ReduceOp::kMax;
    step.other = step.plan;
    if (draw(2) == 0 || !all_hear_of(step.plan.kind)) return step;
    step.odd = static_cast<int>(draw(static_cast<std::size_t>(size_)));
    switch (draw(4)) {
      case 0:
        step.other.kind = static_cast<Kind>((static_cast<std::size_t>(step.plan.kind) + 1 + draw(kKinds - 1)) % kKinds);
        step.odd = all_hear_of(step.other.kind) ? step.odd : -1;
        break;
      case 1:
        step.other.dtype = DType::kInt32;
        break;
      case 2:
        step.other.count += 1 + draw(30'000);
        step.odd = has_one_host_ || step.plan.kind < Kind::kAllToAll ? step.odd : -1;
        break;
      default:
        step.other.root = (step.plan.root + 1) % size_;
        const bool has_root =
            step.plan.kind == Kind::kReduce || step.plan.kind == Kind::kBroadcast || step.plan.kind == Kind::kGather;
        step.odd = has_root ? step.odd : -1;
    }
    return step;
  }

  std::size_t draw(std::size_t below) { return random_() % below; }

 private:
  // Between hosts a rank may have ended its part of these before it could be told.
  bool all_hear_of(Kind kind) const { return has_one_host_ || (kind != Kind::kReduce && kind != Kind::kBroadcast); }

  std::mt19937 random_;
  int size_;
  bool has_one_host_;
};

// Several calls are under way at once: each is compared by itself.
void run_script(Group& group, unsigned seed) {
  Script script(seed, group);
  std::size_t number = 0;
  for (int round = 0; round < 40; ++round) {
    const std::size_t together = 1 + script.draw(4);
    std::vector<std::pair<bool, std::unique_ptr<Started>>> calls;
    for (std::size_t i = 0; i < together; ++i, ++number) {
      const Script::Step step = script.next();
      const Plan& plan = step.odd == group.rank() ? step.other : step.plan;
      const bool is_same = step.odd < 0;
      const auto make = [&] {
        calls.emplace_back(is_same, std::make_unique<Started>(group, plan, number, together > 1));
      };
      if (together == 1 && !is_same) {
        EXPECT_THROW(make(), MismatchError) << "step " << number << " of seed " << seed;
      } else {
        make();
      }
    }
    for (const auto& [is_same, call] : calls) {
      if (is_same) {
        ASSERT_NO_THROW(call->wait()) << "seed " << seed;
        call->check();
      } else {
        EXPECT_THROW(call->wait(), MismatchError) << "seed " << seed;
      }
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(group.error(), nullptr);
}

class AnyLayout : public testing::TestWithParam<Layout> {};

#if defined(__SANITIZE_THREAD__)  // ten times as slow, and other sequences make no other races
constexpr unsigned kSequences = 2;
#else
constexpr unsigned kSequences = 5;
#endif

TEST_P(AnyLayout, AnySequenceOfCallsGoesOn) {
  for (unsigned seed = 1; seed <= kSequences; ++seed) {
    run(GetParam(), [seed](Group& group) { run_script(group, seed); });
  }
}

// Rank 0 calls A, then B; the others B, then A: both are mismatches, and what follows is not.
TEST_P(AnyLayout, OrdersThatDiffer) {
  run(GetParam(), [](Group& group) {
    std::vector<float> data(8, 1);
    const std::array<std::int64_t, 1> shape{8};
    const auto sum = [&] { group.all_reduce(data.data(), data.data(), shape, DType::kFloat32, ReduceOp::kSum); };
    const auto barrier = [&] { group.barrier(); };
    if (group.rank() == 0) {
      EXPECT_THROW(sum(), MismatchError);
      EXPECT_THROW(barrier(), MismatchError);
    } else {
      EXPECT_THROW(barrier(), MismatchError);
      EXPECT_THROW(sum(), MismatchError);
    }
    data.assign(8, 1);
    sum();
    EXPECT_EQ(data[7], static_cast<float>(group.size()));
  });
}

// The others have heard of it long before, and wait in the next call: no deadlock, and no mismatch between calls that
// are over.
TEST_P(AnyLayout, ARankComesLate) {
  run(GetParam(), [](Group& group) {
    const int last = group.size() - 1;
    if (group.rank() == last) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const auto begin = std::chrono::steady_clock::now();
    float one = 1;
    const std::array<std::int64_t, 1> shape{1};
    const ReduceOp op = group.rank() == 0 ? ReduceOp::kMax : ReduceOp::kSum;
    EXPECT_THROW(group.all_reduce(&one, &one, shape, DType::kFloat32, op), MismatchError);
    // Two that differ need nobody else to find out.
    const auto most = std::chrono::seconds(group.size() > 2 ? 1 : 5);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, most);
    group.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(AfterMismatch, AnyLayout,
                         testing::Values(Layout{2}, Layout{3}, Layout{4}, Layout{1, 1}, Layout{1, 1, 1}, Layout{2, 1},
                                         Layout{2, 2}));

// So large that frames of the failed call are half sent, from memory that ends with it.
TEST(AfterMismatch, OfLargeBlocks) {
  const auto check = [](Group& group) {
    const Plan plan{.kind = Kind::kReduceScatter, .count = std::size_t{1} << 22};
    for (const int odd : {0, group.size() - 1}) {
      Plan own = plan;
      if (group.rank() == odd) own.dtype = DType::kInt32;
      EXPECT_THROW(Started(group, own, 0, false), MismatchError);
    }
    const Started last(group, {.kind = Kind::kReduceScatter, .count = 1000}, 1, false);
    last.check();
  };
  for (const Layout& layout : {Layout{2}, Layout{1, 1}, Layout{2, 1}}) run(layout, check);
}

// Rank 0 gathers nothing and so fits both others, which do not fit each other: it hears of that as they do.
TEST(AfterMismatch, OfTwoOtherRanksIsToldToWhoFitsBoth) {
  run({3}, [](Group& group) {
    std::vector<float> in(12, 1);
    std::vector<float> out(36, 0);
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto gather = [&](std::int64_t width_of_last) {
      const std::array<std::size_t, 3> counts{0, 6, static_cast<std::size_t>(2 * width_of_last)};
      std::vector<Buffer> targets;
      for (std::size_t i = 0; i < 3; ++i) targets.push_back({out.data() + 12 * i, counts[i]});
      const Shapes shapes{{2, group.rank() == 2 ? width_of_last : 3}};
      group.gather({in.data(), counts[rank]}, targets, DType::kFloat32, 0, {}, shapes);
    };
    EXPECT_THROW(gather(4), MismatchError);
    gather(3);
    EXPECT_EQ(out[24], group.rank() == 0 ? 1 : 0);
  });
}

}  // namespace
}  // namespace smdp::test
