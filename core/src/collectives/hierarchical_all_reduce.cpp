// The tensor is cut into chunks, a chunk into one slice per lane. Lane i belongs to local rank i of every host. Three
// stages run at once, each on another chunk: sum inside the host (board lane 0), exchange across hosts (links), spread
// inside the host (board lane 1). `out` holds the partial sums, so no stage needs memory of its own.
#include <algorithm>
#include <cstring>
#include <limits>

#include "collectives/exchange.h"
#include "collectives/hierarchical.h"
#include "sharding/equal_shards.h"

namespace smdp {
namespace {

// Bytes of one host's shard of one lane in one chunk: long enough to keep a link busy, short enough that the last
// chunk's second hop, which nothing overlaps, is short.
constexpr std::size_t kShardBytes = std::size_t{128} << 10;
constexpr std::size_t kCodedShardBytes = 4 * kShardBytes;  // before encoding
// Chunks under way between hosts.
constexpr std::size_t kWindow = 3;

struct Pipeline {
  Context& context;
  const std::byte* in;
  std::byte* out;
  std::size_t count;
  Reduction reduction;
  Algorithm algorithm;
  Codec* codec;
  std::size_t lanes;
  std::size_t per_chunk;  // elements
  std::size_t chunks;
  std::size_t summed = 0;            // chunks that have left the first stage
  std::vector<bool> exchanged = {};  // chunks that have left the second
  std::size_t element() const { return size_of(reduction.dtype); }
  std::size_t chunk_begin(std::size_t k) const { return std::min(count, k * per_chunk); }
  std::size_t chunk_size(std::size_t k) const { return std::min(per_chunk, count - chunk_begin(k)); }
  Slice slice(std::size_t k, std::size_t lane) const {
    const Slice within = slice_of(chunk_size(k), lanes, lane, element());
    return {chunk_begin(k) + within.begin, chunk_begin(k) + within.end};
  }
  bool has_lane() const { return context.members.local_index < lanes; }
};

Task sum_locally(Pipeline& p) {
  Reduction partial = p.reduction;
  partial.divisor = 1;  // divided once, after the exchange
  for (std::size_t k = 0; k < p.chunks; ++k) {
    std::vector<ConstBytes> pieces(p.context.board.size());
    for (std::size_t lane = 0; lane < p.lanes; ++lane) {
      const Slice slice = p.slice(k, lane);
      pieces[lane] = {p.in + slice.begin * p.element(), slice.size() * p.element()};
    }
    const Slice own = p.slice(k, std::min(p.context.members.local_index, p.lanes - 1));
    std::byte* target = p.out + own.begin * p.element();
    if (p.context.board.size() > 1) {
      co_await local_reduce_scatter(p.context.board, 0, std::move(pieces), target, partial);
    } else if (target != pieces[0].data && pieces[0].size != 0) {
      std::memcpy(target, pieces[0].data, pieces[0].size);
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
  for (std::size_t k = worker; k < p.chunks; k += kWindow) {
    co_await until(-1, [&p, k] { return p.summed > k; });
    const Slice slice = p.slice(k, members.local_index);
    std::byte* data = p.out + slice.begin * p.element();
    lane.slots = k * kSlotsPerExchange;
    if (p.codec != nullptr) {
      co_await exchange_coded(p.context, lane, reinterpret_cast<float*>(data), slice.begin, slice.size(), *p.codec);
      p.exchanged[k] = true;
      continue;
    }
    switch (p.algorithm) {
      case Algorithm::kRing:
        co_await exchange_ring(p.context, lane, data, slice.size(), p.reduction);
        break;
      case Algorithm::kRecursiveDoubling:
        co_await exchange_recursive_doubling(p.context, lane, data, slice.size(), p.reduction);
        break;
      default:
        co_await exchange_direct(p.context, lane, data, slice.size(), p.reduction);
    }
    p.exchanged[k] = true;
  }
}

Task spread_chunks(Pipeline& p) {
  for (std::size_t k = 0; k < p.chunks; ++k) {
    if (p.has_lane()) co_await until(-1, [&p, k]() -> bool { return p.exchanged[k]; });
    if (p.context.board.size() == 1) continue;
    std::vector<std::vector<Bytes>> contributions(p.context.board.size());
    for (std::size_t lane = 0; lane < p.lanes; ++lane) {
      const Slice slice = p.slice(k, lane);
      contributions[lane].push_back({p.out + slice.begin * p.element(), slice.size() * p.element()});
    }
    co_await spread(p.context.board, 1, std::move(contributions));
  }
}

}  // namespace

Task hierarchical_all_reduce(Context& context, const std::byte* in, std::byte* out, std::size_t count,
                             Reduction reduction, const Planner& planner, Codec* codec) {
  std::size_t lanes = std::numeric_limits<std::size_t>::max();
  for (const std::vector<int>& host : context.members.hosts) lanes = std::min(lanes, host.size());
  const std::size_t per_chunk =
      std::max<std::size_t>(1, (codec == nullptr ? kShardBytes : kCodedShardBytes) * context.members.hosts.size() *
                                   lanes / size_of(reduction.dtype));
  const Algorithm algorithm =
      codec != nullptr ? Algorithm::kDirect
                       : planner.host_exchange(count * size_of(reduction.dtype) / lanes, context.members.hosts.size());
  context.algorithm = codec != nullptr ? "direct, encoded" : name_of(algorithm);
  Pipeline pipeline{context,   in,    out,   count,     reduction,
                    algorithm, codec, lanes, per_chunk, std::max<std::size_t>(1, (count + per_chunk - 1) / per_chunk)};
  pipeline.exchanged.resize(pipeline.chunks, false);
  std::vector<Task> stages;
  stages.push_back(sum_locally(pipeline));
  if (pipeline.has_lane()) {
    for (std::size_t worker = 0; worker < std::min(kWindow, pipeline.chunks); ++worker) {
      stages.push_back(exchange_chunks(pipeline, worker));
    }
  }
  stages.push_back(spread_chunks(pipeline));
  co_await when_all(std::move(stages));
}

}  // namespace smdp
