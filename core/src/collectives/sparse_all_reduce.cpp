#include "collectives/sparse_all_reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "collectives/batch.h"
#include "collectives/routes.h"
#include "cost/sparse_cost.h"

namespace smdp {
namespace {

// Message numbers distinct from those of an all_reduce, which count from 0.
constexpr std::uint64_t kCountsSlot = std::numeric_limits<std::uint64_t>::max() / 2;
constexpr std::uint64_t kPlacesSlot = kCountsSlot + 1;
constexpr std::uint64_t kValuesSlot = kCountsSlot + 2;

// What a rank announces about its rows.
struct Contribution {
  std::uint64_t rows = 0;
  std::uint64_t is_dense = 0;
};

std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

// Blocks of other ranks are written; this rank's own is only read.
Bytes block_at(const void* own, std::size_t bytes) {
  return {const_cast<std::byte*>(static_cast<const std::byte*>(own)), bytes};
}

Task gather_rows(Context& context, SparseParts& parts, const std::vector<Contribution>& contributions,
                 Reduction reduction) {
  const auto me = static_cast<std::size_t>(context.members.rank);
  std::size_t others = 0;
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) others += rank == me ? 0 : contributions[rank].rows;
  std::vector<std::int64_t> places(others);
  parts.received = SparseParts::allocate(others * parts.row_bytes());

  std::vector<Bytes> place_blocks;
  std::vector<Bytes> value_blocks;
  std::vector<const std::int64_t*> places_of;
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    const std::size_t rows = contributions[rank].rows;
    places_of.push_back(rank == me ? parts.own_places.data() : places.data() + begin);
    place_blocks.push_back(block_at(places_of.back(), rows * sizeof(std::int64_t)));
    const std::byte* values = rank == me ? parts.own_values : parts.received.get() + begin * parts.row_bytes();
    value_blocks.push_back(block_at(values, rows * parts.row_bytes()));
    if (rank != me) begin += rows;
  }
  const auto own = [me](const std::vector<Bytes>& blocks) { return ConstBytes{blocks[me].data, blocks[me].size}; };
  Task of_places = routed_all_gather(context, place_blocks, own(place_blocks), kPlacesSlot);
  co_await of_places;
  Task of_values = routed_all_gather(context, value_blocks, own(value_blocks), kValuesSlot);
  co_await of_values;

  std::vector<Row> rows;
  rows.reserve(others + parts.own_places.size());
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    for (std::size_t i = 0; i < contributions[rank].rows; ++i) {
      rows.push_back({static_cast<std::uint64_t>(places_of[rank][i]), value_blocks[rank].data + i * parts.row_bytes()});
    }
  }
  parts.set_gathered(std::move(rows), reduction);
}

Task add_densely(Context& context, SparseParts& parts, Reduction reduction, const Planner& planner) {
  const std::byte* in = parts.dense;
  if (in != nullptr) {
    parts.whole = SparseParts::allocate(parts.whole_bytes());
  } else {
    parts.whole = SparseParts::allocate_zeros(parts.whole_bytes());
    in = parts.whole.get();
    for (std::size_t i = 0; i < parts.own_places.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(parts.own_places[i]) * parts.row_bytes();
      copy_bytes(parts.whole.get() + at, parts.own_values + i * parts.row_bytes(), parts.row_bytes());
    }
  }
  std::vector<Batch::Item> items{{in, parts.whole.get(), parts.rows_in_all * parts.row_elements, reduction}};
  if (!parts.is_dense) {
    parts.used.resize((parts.rows_in_all + 7) / 8);
    for (const std::int64_t place : parts.own_places) {
      const auto bit = static_cast<std::uint8_t>(1U << (place % 8));
      parts.used[static_cast<std::size_t>(place / 8)] |= bit;
    }
    std::byte* used = bytes_of(parts.used.data());
    items.push_back({used, used, parts.used.size(), {DType::kUint8, ReduceOp::kBor}});
  }
  const std::size_t count = items.size();
  const Batch batch(std::move(items), count);
  Task sum = routed_all_reduce_batch(context, batch, planner);
  co_await sum;
  parts.count = parts.rows_in_all;
  if (parts.is_dense) co_return;
  parts.count = 0;
  for (const std::uint8_t byte : parts.used) parts.count += static_cast<std::size_t>(std::popcount(byte));
}

}  // namespace

Task sparse_all_reduce(Context& context, SparseParts& parts, Reduction reduction, const Planner& planner) {
  std::vector<Contribution> contributions(static_cast<std::size_t>(context.members.size));
  std::vector<Bytes> blocks;
  for (Contribution& one : contributions) blocks.push_back({bytes_of(&one), sizeof(Contribution)});
  Contribution& own = contributions[static_cast<std::size_t>(context.members.rank)];
  own = {parts.own_places.size(), parts.is_dense_here() ? 1U : 0U};
  Task counts = routed_all_gather(context, blocks, {bytes_of(&own), sizeof(Contribution)}, kCountsSlot);
  co_await counts;

  std::size_t sent = 0;
  for (const Contribution& one : contributions) {
    sent += one.rows;
    parts.is_dense = parts.is_dense || one.is_dense != 0;
  }
  if (!parts.is_dense && cost::gathers_rows(sent, {parts.rows_in_all, parts.row_bytes()})) {
    Task gathered = gather_rows(context, parts, contributions, reduction);
    co_await gathered;
    context.algorithm = "gather";
  } else {
    Task summed = add_densely(context, parts, reduction, planner);
    co_await summed;
    context.algorithm = "dense";
  }
}

}  // namespace smdp
