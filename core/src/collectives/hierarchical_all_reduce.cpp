// Tensors are cut into chunks, a chunk into one slice per lane. Lane i belongs to local rank i of every host. Three
// stages run at once, each on another chunk: sum inside the host (board lane 0), exchange across hosts (links), spread
// inside the host (board lane 1). `out` holds the partial sums, so no stage needs memory of its own.
#include <algorithm>
#include <limits>

#include "collectives/exchange.h"
#include "collectives/hierarchical.h"
#include "sharding/equal_shards.h"

namespace smdp {
namespace {

// Before encoding.
constexpr std::size_t kCodedShardBytes = std::size_t{512} << 10;
// Of a lane: every step of recursive doubling sends the whole chunk.
constexpr std::size_t kDoublingBytes = std::size_t{1} << 20;
// Chunks under way between hosts. None starts before all that are this far behind it are over, so that no message of a
// later one keeps one that is awaited from coming.
constexpr std::size_t kWindow = 3;

struct Chunk {
  std::size_t item;
  std::size_t begin;  // element of the item
  std::size_t size;   // elements
  bool is_last;       // of its item
};

struct Pipeline {
  Context& context;
  const Batch& batch;
  const Planner& planner;
  std::size_t lanes;
  std::vector<Chunk> chunks = {};
  std::vector<Algorithm> algorithms = {};  // between hosts, by item
  std::size_t summed = 0;                  // chunks that have left the first stage
  std::vector<bool> exchanged = {};        // chunks that have left the second
  std::size_t over = 0;                    // of those, the first ones without a gap

  const Batch::Item& item(std::size_t k) const { return batch.items()[chunks[k].item]; }
  // Within the item.
  Slice slice(std::size_t k, std::size_t lane) const {
    const Slice within = slice_of(chunks[k].size, lanes, lane, size_of(item(k).reduction.dtype));
    return {chunks[k].begin + within.begin, chunks[k].begin + within.end};
  }
  // Whether partial sums are stored before the one that makes the result.
  bool has_stages(std::size_t k) const {
    return stores_partial_sums(context.members) || algorithms[chunks[k].item] != Algorithm::kDirect;
  }
  Reduction inside_host(std::size_t k) const {
    const Reduction& whole = item(k).reduction;
    return has_stages(k) ? first_stage(whole) : middle_stage(whole);
  }
  Reduction across_hosts(std::size_t k) const {
    const Reduction& whole = item(k).reduction;
    return has_stages(k) ? last_stage(whole) : whole;
  }
  bool has_lane() const { return context.members.local_index < lanes; }

  void end_exchange(std::size_t k) {
    exchanged[k] = true;
    while (over < chunks.size() && exchanged[over]) ++over;
  }

  // A measurement has no say where ends of shards decide what is lost, or in what order a sum is formed.
  std::size_t chunk_bytes(const Batch::Item& one, Algorithm algorithm) const {
    if (one.codec == nullptr && algorithm == Algorithm::kRecursiveDoubling) return kDoublingBytes * lanes;
    const std::size_t parts = context.members.hosts.size() * lanes;
    if (one.codec != nullptr) return kCodedShardBytes * parts;
    return parts * (algorithm == Algorithm::kRing ? cost::ExchangeSizes{}.shard : batch.sizes().shard);
  }

  // An empty item is a chunk, too: it ends when its turn comes.
  void cut() {
    const std::size_t hosts = context.members.hosts.size();
    std::size_t bytes = 0;
    for (const Batch::Item& one : batch.items()) bytes += one.bytes();
    const Algorithm usual = batch.items().size() == 1 ? planner.host_exchange(bytes / lanes, hosts)
                                                      : planner.batch_exchange(bytes / lanes, hosts);
    for (std::size_t i = 0; i < batch.items().size(); ++i) {
      const Batch::Item& one = batch.items()[i];
      algorithms.push_back(one.codec == nullptr ? usual : Algorithm::kDirect);
      const std::size_t most =
          std::max<std::size_t>(1, chunk_bytes(one, algorithms.back()) / size_of(one.reduction.dtype));
      std::size_t begin = 0;
      do {
        const std::size_t size = std::min(most, one.count - begin);
        chunks.push_back({i, begin, size, begin + size == one.count});
        begin += size;
      } while (begin < one.count);
    }
    exchanged.resize(chunks.size(), false);
  }
};

Task sum_locally(Pipeline& p) {
  for (std::size_t k = 0; k < p.chunks.size(); ++k) {
    const Batch::Item& item = p.item(k);
    const std::size_t number = p.chunks[k].item;
    if (!p.batch.is_filled(number)) {
      co_await until(-1, [&p, number] { return p.batch.is_filled(number); });
    }
    if (p.chunks[k].begin == 0) item.begin();
    const Reduction partial = p.inside_host(k);
    const std::size_t element = size_of(partial.dtype);
    std::vector<ConstBytes> pieces(p.context.board.size());
    for (std::size_t lane = 0; lane < p.lanes; ++lane) {
      const Slice slice = p.slice(k, lane);
      pieces[lane] = {item.in + slice.begin * element, slice.size() * element};
    }
    const Slice own = p.slice(k, std::min(p.context.members.local_index, p.lanes - 1));
    std::byte* target = item.out + own.begin * element;
    if (p.context.board.size() > 1) {
      co_await local_reduce_scatter(p.context.board, 0, std::move(pieces), target, partial);
    } else if (pieces[0].size != 0) {
      const void* only = pieces[0].data;
      reduce(target, &only, 1, pieces[0].size / element, partial);
    }
    p.summed = k + 1;
    // Let the other stages start on it.
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
    const Slice slice = p.slice(k, members.local_index);
    std::byte* data = item.out + slice.begin * size_of(item.reduction.dtype);
    lane.slots = k * kSlotsPerExchange;
    if (item.codec != nullptr) {
      p.context.algorithm = "direct, encoded";
      co_await exchange_coded(p.context, lane, reinterpret_cast<float*>(data), slice.begin, slice.size(), *item.codec);
      p.end_exchange(k);
      continue;
    }
    const Reduction reduction = p.across_hosts(k);
    const Algorithm algorithm = p.algorithms[p.chunks[k].item];
    p.context.algorithm = name_of(algorithm);
    switch (algorithm) {
      case Algorithm::kRing:
        co_await exchange_ring(p.context, lane, data, slice.size(), reduction);
        break;
      case Algorithm::kRecursiveDoubling:
        co_await exchange_recursive_doubling(p.context, lane, data, slice.size(), reduction);
        break;
      default:
        co_await exchange_direct(
            p.context, lane, data, slice.size(), reduction,
            p.batch.sizes().owners(slice.size() * size_of(item.reduction.dtype), members.hosts.size()));
    }
    p.end_exchange(k);
  }
}

Task spread_chunks(Pipeline& p) {
  for (std::size_t k = 0; k < p.chunks.size(); ++k) {
    // A rank without a lane exchanges nothing, but where its item lies is known only once it is filled.
    co_await until(-1, [&p, k]() -> bool { return p.has_lane() ? p.exchanged[k] : p.summed > k; });
    const Batch::Item& item = p.item(k);
    if (p.context.board.size() > 1) {
      std::vector<std::vector<Bytes>> contributions(p.context.board.size());
      const std::size_t element = size_of(item.reduction.dtype);
      for (std::size_t lane = 0; lane < p.lanes; ++lane) {
        const Slice slice = p.slice(k, lane);
        contributions[lane].push_back({item.out + slice.begin * element, slice.size() * element});
      }
      co_await spread(p.context.board, 1, std::move(contributions));
    }
    if (p.chunks[k].is_last) item.end();
  }
}

}  // namespace

Task hierarchical_all_reduce(Context& context, const Batch& batch, const Planner& planner) {
  std::size_t lanes = std::numeric_limits<std::size_t>::max();
  for (const std::vector<int>& host : context.members.hosts) lanes = std::min(lanes, host.size());
  context.streams = batch.sizes().streams;
  Pipeline pipeline{context, batch, planner, lanes};
  pipeline.cut();
  std::vector<Task> stages;
  stages.push_back(sum_locally(pipeline));
  if (pipeline.has_lane()) {
    for (std::size_t worker = 0; worker < std::min(kWindow, pipeline.chunks.size()); ++worker) {
      stages.push_back(exchange_chunks(pipeline, worker));
    }
  }
  stages.push_back(spread_chunks(pipeline));
  co_await when_all(std::move(stages));
}

}  // namespace smdp
