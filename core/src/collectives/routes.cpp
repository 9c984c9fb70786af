#include "collectives/routes.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "collectives/hierarchical.h"

namespace smdp {
namespace {

// On one host: shared memory, item by item.
Task all_reduce_here(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                     const Planner& planner) {
  Board& board = context.board;
  const std::size_t size = count * size_of(reduction.dtype);
  const Algorithm algorithm = planner.local_all_reduce(size, board.size(), board.slot_bytes());
  context.algorithm = name_of(algorithm);
  if (algorithm == Algorithm::kOneShot) {
    return one_shot_all_reduce(board, in, out, count, reduction);
  }
  return two_shot_all_reduce(board, in, out, count, reduction);
}

}  // namespace

Task routed_all_reduce_batch(Context& context, const Batch& batch, const Planner& planner) {
  const bool is_sharded = std::any_of(batch.items().begin(), batch.items().end(),
                                      [](const Batch::Item& item) { return item.part != Part::kWhole; });
  if (!context.is_single_host() || is_sharded) {
    co_await hierarchical_all_reduce(context, batch, planner);
    co_return;
  }
  std::size_t largest = 0;  // size of the largest item
  const char* algorithm = "";
  for (std::size_t i = 0; i < batch.items().size(); ++i) {
    const Batch::Item& item = batch.items()[i];
    if (!batch.is_filled(i)) co_await until(-1, [&batch, i] { return batch.is_filled(i); });
    item.begin();
    co_await all_reduce_here(context, item.in, item.out, item.count, item.reduction, planner);
    item.end();
    const std::size_t size = item.count * size_of(item.reduction.dtype);
    if (size >= largest) {
      largest = size;
      algorithm = context.algorithm;
    }
  }
  context.algorithm = algorithm;
}

namespace {

Task across_hosts(Context& context, std::shared_ptr<Batch> batch, const Planner& planner) {
  co_await hierarchical_all_reduce(context, *batch, planner);
}

// Slower than the others, except where only a tree of links works well. The data going up and down differ in direction,
// so both may use the same message numbers.
Task up_and_down_a_tree(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction) {
  context.algorithm = name_of(Algorithm::kTree);
  co_await tree_reduce(context, in, out, count, reduction, 0);
  co_await tree_broadcast(context, out, count * size_of(reduction.dtype), 0);
}

Task unscaled(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
              const Planner& planner) {
  if (context.is_single_host()) return all_reduce_here(context, in, out, count, reduction, planner);
  if (planner.takes_tree()) return up_and_down_a_tree(context, in, out, count, reduction);
  return across_hosts(context, std::make_shared<Batch>(std::vector<Batch::Item>{{in, out, count, reduction}}, 1),
                      planner);
}

// PREMUL_SUM: applies this rank's factor first, then sums in place.
Task scaled(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
            double factor, const Planner& planner) {
  if (count != 0) scale(out, in, count, reduction.dtype, factor);
  Task sum = unscaled(context, out, out, count, reduction, planner);
  co_await sum;
}

// A PREMUL_SUM of a 16-bit dtype is formed in float32, also between hosts, and rounded once, because scaled values may
// not fit the dtype.
bool is_widened(const Reduction& reduction) {
  const DType component = component_of(reduction.dtype);
  return reduction.op == ReduceOp::kPremulSum && (component == DType::kFloat16 || component == DType::kBfloat16);
}

constexpr Reduction kWideSum{DType::kFloat32, ReduceOp::kSum};

std::size_t floats_of(const Reduction& reduction, std::size_t bytes) {
  return bytes / size_of(component_of(reduction.dtype));
}

// Takes twice the bytes.
std::vector<float> widened(const Reduction& reduction, ConstBytes data, double factor) {
  std::vector<float> wide(floats_of(reduction, data.size));
  if (!wide.empty()) widen(wide.data(), data.data, component_of(reduction.dtype), wide.size(), factor);
  return wide;
}

void narrow_to(std::byte* out, const Reduction& reduction, const std::vector<float>& wide) {
  if (!wide.empty()) narrow(out, component_of(reduction.dtype), wide.data(), wide.size());
}

Task all_reduce_wide(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                     double factor, const Planner& planner) {
  std::vector<float> wide = widened(reduction, {in, count * size_of(reduction.dtype)}, factor);
  auto* data = reinterpret_cast<std::byte*>(wide.data());
  Task sum = unscaled(context, data, data, wide.size(), kWideSum, planner);
  co_await sum;
  narrow_to(out, reduction, wide);
}

Task reduce_wide(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                 int root, double factor) {
  std::vector<float> wide = widened(reduction, {in, count * size_of(reduction.dtype)}, factor);
  auto* data = reinterpret_cast<std::byte*>(wide.data());
  const bool is_root = context.members.rank == root;
  Task sum = routed_reduce(context, data, is_root ? data : nullptr, wide.size(), kWideSum, root, 1.0);
  co_await sum;
  if (is_root) narrow_to(out, reduction, wide);
}

Task reduce_scatter_wide(Context& context, std::vector<ConstBytes> blocks, std::byte* out, Reduction reduction,
                         double factor) {
  std::vector<std::vector<float>> wide;
  for (ConstBytes& block : blocks) {
    wide.push_back(widened(reduction, block, factor));
    block = {reinterpret_cast<const std::byte*>(wide.back().data()), wide.back().size() * sizeof(float)};
  }
  std::vector<float> own(wide[static_cast<std::size_t>(context.members.rank)].size());
  Task sum = routed_reduce_scatter(context, std::move(blocks), reinterpret_cast<std::byte*>(own.data()), kWideSum, 1.0);
  co_await sum;
  narrow_to(out, reduction, own);
}

}  // namespace

Task routed_all_reduce(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                       double factor, const Planner& planner) {
  if (reduction.op != ReduceOp::kPremulSum) return unscaled(context, in, out, count, reduction, planner);
  if (is_widened(reduction)) return all_reduce_wide(context, in, out, count, reduction, factor, planner);
  return scaled(context, in, out, count, reduction, factor, planner);
}

Task routed_reduce(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                   int root, double factor) {
  if (is_widened(reduction)) {
    Task wide = reduce_wide(context, in, out, count, reduction, root, factor);
    co_await wide;
    co_return;
  }
  context.algorithm = name_of(context.is_single_host() ? Algorithm::kTwoShot : Algorithm::kTree);
  std::vector<std::byte> scaled;
  if (reduction.op == ReduceOp::kPremulSum && count != 0) {
    scaled.resize(count * size_of(reduction.dtype));
    scale(scaled.data(), in, count, reduction.dtype, factor);
    in = scaled.data();
  }
  Task task = context.is_single_host() ? two_shot_all_reduce(context.board, in, out, count, reduction)
                                       : tree_reduce(context, in, out, count, reduction, root);
  co_await task;
}

Task routed_broadcast(Context& context, Bytes data, int root) {
  context.algorithm = context.is_single_host() ? "spread" : name_of(Algorithm::kTree);
  if (!context.is_single_host()) return tree_broadcast(context, data.data, data.size, root);
  std::vector<std::vector<Bytes>> contributions(context.board.size());
  contributions[context.members.local_index_of(root)].push_back(data);
  return spread(context.board, 0, std::move(contributions));
}

Task routed_all_gather(Context& context, std::vector<Bytes> blocks, ConstBytes in, std::uint64_t slot) {
  const Bytes own = blocks[static_cast<std::size_t>(context.members.rank)];
  context.algorithm = context.is_single_host() ? "spread" : "hierarchical";
  if (!context.is_single_host()) {
    if (own.data != in.data && own.size != 0) std::memmove(own.data, in.data, own.size);
    return hierarchical_all_gather(context, std::move(blocks), slot);
  }
  std::vector<std::vector<Bytes>> contributions;
  for (const Bytes& block : blocks) contributions.push_back({block});
  return spread(context.board, 0, std::move(contributions), own.data == in.data ? nullptr : in.data);
}

Task routed_reduce_scatter(Context& context, std::vector<ConstBytes> blocks, std::byte* out, Reduction reduction,
                           double factor) {
  if (is_widened(reduction)) {
    Task wide = reduce_scatter_wide(context, std::move(blocks), out, reduction, factor);
    co_await wide;
    co_return;
  }
  std::vector<std::vector<std::byte>> scaled;
  if (reduction.op == ReduceOp::kPremulSum) {
    for (ConstBytes& block : blocks) {
      scaled.emplace_back(block.size);
      if (block.size != 0) {
        scale(scaled.back().data(), block.data, block.size / size_of(reduction.dtype), reduction.dtype, factor);
      }
      block.data = scaled.back().data();
    }
  }
  context.algorithm = context.is_single_host() ? "shared_memory" : "hierarchical";
  Task task = context.is_single_host() ? local_reduce_scatter(context.board, 0, std::move(blocks), out, reduction)
                                       : hierarchical_reduce_scatter(context, std::move(blocks), out, reduction);
  co_await task;
}

}  // namespace smdp
