// Tensors are cut into chunks, and a chunk into one slice per lane. Lane i belongs to local rank i of every host. Three
// stages run at once, each on a different chunk: the sum inside the host (board lane 0), the exchange across hosts
// (links), and the spreading inside the host (board lane 1). `out` holds the partial sums, so no stage needs its own
// memory. An item that goes to its owners only leaves out the spreading, and one that comes from them the sum. Where
// the ranks of a host have the items in the same memory, they only wait for each other instead of spreading them.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/chunks.h"
#include "collectives/exchange.h"
#include "collectives/hierarchical.h"

namespace smdp {
namespace {

// Maximum number of chunks in flight between hosts. A chunk starts only when all chunks this far before it are over, so
// that no message of a later chunk holds up one that is awaited.
constexpr std::size_t kWindow = 3;

struct Pipeline {
  Context& context;
  const Batch& batch;
  std::size_t lanes;
  std::vector<Chunk> chunks;
  std::vector<Algorithm> algorithms;  // between hosts, by item
  std::size_t summed = 0;             // chunks that have left the first stage
  std::vector<bool> exchanged = {};   // chunks that have left the second
  std::size_t over = 0;               // how many of the first ones have left it without a gap

  const Batch::Item& item(std::size_t k) const { return batch.items()[chunks[k].item]; }
  // Within the item.
  Slice slice(std::size_t k, std::size_t lane) const { return slice_of_lane(chunks[k], item(k), lanes, lane); }
  std::size_t hosts() const { return context.members.hosts.size(); }
  // Returns whether partial sums are stored before the final sum.
  bool has_stages(std::size_t k) const {
    return stores_partial_sums(context.members) || algorithms[chunks[k].item] != Algorithm::kDirect;
  }
  Reduction inside_host(std::size_t k) const {
    const Reduction& whole = item(k).reduction;
    if (hosts() == 1) return whole;
    return has_stages(k) ? first_stage(whole) : middle_stage(whole);
  }
  Reduction across_hosts(std::size_t k) const {
    const Reduction& whole = item(k).reduction;
    return has_stages(k) ? last_stage(whole) : whole;
  }
  // Returns the hops of an item between hosts; none inside one host, and where a host's ranks own a whole lane.
  std::optional<Hops> hops(std::size_t k) const {
    const Part part = item(k).part;
    if (hosts() == 1 || (part == Part::kFromOwners && !batch.shards_span_hosts())) return std::nullopt;
    if (part == Part::kWhole || !batch.shards_span_hosts()) return Hops::kBoth;
    return part == Part::kToOwners ? Hops::kToOwners : Hops::kFromOwners;
  }
  // Returns the shards of this rank's slice, by host, in elements of the slice.
  std::vector<Slice> shards(std::size_t k, const Slice& own) const {
    const Batch::Item& one = item(k);
    const std::size_t element = size_of(one.reduction.dtype);
    const bool are_owned = one.part != Part::kWhole && batch.shards_span_hosts();
    const bool are_equal = one.part != Part::kWhole || one.codec != nullptr;
    const std::size_t owners = are_equal ? hosts() : owners_of(chunks[k], batch.sizes(), hosts(), lanes, element);
    std::vector<Slice> all;
    for (std::size_t host = 0; host < hosts(); ++host) {
      all.push_back(are_owned ? owned_by_host(own, one, hosts(), host, true, context.members.local_index)
                              : shard_of(own.size(), owners, host, element));
    }
    return all;
  }
  bool has_lane() const { return context.members.local_index < lanes; }
  // Returns what this rank owns of a chunk, in elements of the item.
  Slice owned(std::size_t k) const {
    const std::size_t lane = context.members.local_index;
    const Slice own = slice(k, lane);
    const Slice within =
        owned_by_host(own, item(k), hosts(), context.members.host_index, batch.shards_span_hosts(), lane);
    return {own.begin + within.begin, own.begin + within.end};
  }
  // Returns where what this rank owns of a chunk goes; null: it stays in `out`.
  std::byte* own(std::size_t k) const {
    if (item(k).own == nullptr || !has_lane()) return nullptr;
    std::size_t before = 0;
    for (std::size_t other = k; other-- > 0 && chunks[other].item == chunks[k].item;) before += owned(other).size();
    return item(k).own + before * size_of(item(k).reduction.dtype);
  }

  void end_exchange(std::size_t k) {
    if (std::byte* to = own(k); to != nullptr && hosts() > 1) {
      const Slice slice = owned(k);
      const std::size_t element = size_of(item(k).reduction.dtype);
      copy_bytes(to, item(k).out + slice.begin * element, slice.size() * element);
    }
    exchanged[k] = true;
    while (over < chunks.size() && exchanged[over]) ++over;
  }
};

Task sum_locally(Pipeline& p, std::size_t k) {
  const Batch::Item& item = p.item(k);
  const Reduction partial = p.inside_host(k);
  const std::size_t element = size_of(partial.dtype);
  std::vector<ConstBytes> pieces(p.context.board.size());
  for (std::size_t lane = 0; lane < p.lanes; ++lane) {
    const Slice slice = p.slice(k, lane);
    pieces[lane] = {item.in + slice.begin * element, slice.size() * element};
  }
  const Slice own = p.slice(k, std::min(p.context.members.local_index, p.lanes - 1));
  // Inside one host, the sum is what this rank owns.
  std::byte* elsewhere = p.hosts() == 1 ? p.own(k) : nullptr;
  std::byte* target = elsewhere != nullptr ? elsewhere : item.out + own.begin * element;
  if (p.context.board.size() > 1) {
    co_await local_reduce_scatter(p.context.board, 0, std::move(pieces), target, partial, p.batch.bytes());
  } else if (pieces[0].size != 0) {
    const void* only = pieces[0].data;
    reduce(target, &only, 1, pieces[0].size / element, partial);
  }
}

Task sum_chunks(Pipeline& p) {
  for (std::size_t k = 0; k < p.chunks.size(); ++k) {
    const Batch::Item& item = p.item(k);
    const std::size_t number = p.chunks[k].item;
    if (!p.batch.is_filled(number)) {
      co_await until(-1, [&p, number] { return p.batch.is_filled(number); });
    }
    if (p.chunks[k].begin == 0) item.begin();
    if (item.part != Part::kFromOwners) {
      Task sum = sum_locally(p, k);
      co_await sum;
    }
    p.summed = k + 1;
    // Lets the other stages start on the chunk.
    bool yielded = false;
    co_await until(-1, [&yielded] { return std::exchange(yielded, true); });
  }
}

Task exchange_chunks(Pipeline& p, std::size_t worker) {
  const Members& members = p.context.members;
  Lane lane;
  lane.me = members.host_index;
  for (const std::vector<int>& host : members.hosts) lane.ranks.push_back(host[members.local_index]);
  for (std::size_t k = worker; k < p.chunks.size(); k += kWindow) {
    co_await until(-1, [&p, k] { return p.summed > k && k < p.over + kWindow; });
    const Batch::Item& item = p.item(k);
    const std::optional<Hops> hops = p.hops(k);
    if (!hops) {
      p.end_exchange(k);
      continue;
    }
    const Slice slice = p.slice(k, members.local_index);
    std::byte* data = item.out + slice.begin * size_of(item.reduction.dtype);
    lane.slots = k * kSlotsPerExchange;
    if (item.codec != nullptr && *hops != Hops::kFromOwners) {
      co_await exchange_coded(p.context, lane, reinterpret_cast<float*>(data), slice.begin, p.shards(k, slice),
                              *item.codec, *hops);
      p.end_exchange(k);
      continue;
    }
    const Reduction reduction = p.across_hosts(k);
    const Algorithm algorithm = p.algorithms[p.chunks[k].item];
    switch (algorithm) {
      case Algorithm::kRing:
        co_await exchange_ring(p.context, lane, data, slice.size(), reduction);
        break;
      case Algorithm::kRecursiveDoubling:
        co_await exchange_recursive_doubling(p.context, lane, data, slice.size(), reduction);
        break;
      default:
        co_await exchange_direct(p.context, lane, data, reduction, p.shards(k, slice), *hops);
    }
    p.end_exchange(k);
  }
}

Task spread_chunks(Pipeline& p) {
  for (std::size_t k = 0; k < p.chunks.size(); ++k) {
    // A rank without a lane exchanges nothing, but the place of its item is known only once the item is filled.
    co_await until(-1, [&p, k]() -> bool { return p.has_lane() ? p.exchanged[k] : p.summed > k; });
    const Batch::Item& item = p.item(k);
    if (p.batch.is_once_per_host()) {
      if (p.chunks[k].is_last) co_await local_barrier(p.context.board);
    } else if (p.context.board.size() > 1 && item.part != Part::kToOwners) {
      std::vector<std::vector<Bytes>> contributions(p.context.board.size());
      const std::size_t element = size_of(item.reduction.dtype);
      for (std::size_t lane = 0; lane < p.lanes; ++lane) {
        const Slice slice = p.slice(k, lane);
        contributions[lane].push_back({item.out + slice.begin * element, slice.size() * element});
      }
      co_await spread(p.context.board, 1, std::move(contributions), nullptr, p.batch.bytes());
    }
    if (p.chunks[k].is_last) item.end();
  }
}

// The algorithm of the largest item represents the batch.
const char* algorithm_of_largest(const Pipeline& p) {
  const auto size_of_item = [&p](std::size_t i) {
    const Batch::Item& item = p.batch.items()[i];
    return item.count * size_of(item.reduction.dtype);
  };
  std::size_t largest = 0;
  for (std::size_t i = 1; i < p.batch.items().size(); ++i) {
    if (size_of_item(i) > size_of_item(largest)) largest = i;
  }
  return p.batch.items()[largest].codec != nullptr ? "direct, encoded" : name_of(p.algorithms[largest]);
}

}  // namespace

Task hierarchical_all_reduce(Context& context, const Batch& batch, const Planner& planner) {
  const std::size_t lanes = lanes_of(context.members.hosts);
  context.streams = batch.sizes().streams;
  Cut all = cut(batch, planner, context.members.hosts.size(), lanes);
  Pipeline pipeline{context, batch, lanes, std::move(all.chunks), std::move(all.algorithms)};
  pipeline.exchanged.resize(pipeline.chunks.size(), false);
  context.algorithm = algorithm_of_largest(pipeline);
  std::vector<Task> stages;
  stages.push_back(sum_chunks(pipeline));
  if (pipeline.has_lane()) {
    for (std::size_t worker = 0; worker < std::min(kWindow, pipeline.chunks.size()); ++worker) {
      stages.push_back(exchange_chunks(pipeline, worker));
    }
  }
  stages.push_back(spread_chunks(pipeline));
  co_await when_all(std::move(stages));
}

}  // namespace smdp
