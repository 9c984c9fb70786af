// Simulates GradientReducer with the times of the cost model: the same fusion buffers, the same choice of algorithm,
// and one link per host that serves the buffers in order.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "collectives/chunks.h"
#include "collectives/planner.h"
#include "cost/coding_cost.h"
#include "cost/collective_cost.h"
#include "cost/exchange_cost.h"
#include "fusion/explanation.h"
#include "fusion/layout.h"
#include "smdp/error.h"
#include "smdp/simulation.h"

namespace smdp {
namespace {

// Chunks in flight: see hierarchical_all_reduce.cpp.
constexpr double kWindow = 3;

// Returns the bytes on the wire per byte of float32.
double wire_ratio(const DdpSetting& setting) {
  switch (setting.compression) {
    case Compression::kFloat16:
    case Compression::kBfloat16:
      return 0.5;
    case Compression::kInt8:
      return (256 + 4) / 1024.0;
    case Compression::kTopK:
      // A place and a value each; the sum of several hosts' pieces is as long as all of them together.
      return std::min(1.0, 2 * setting.topk_ratio * (1 + static_cast<double>(setting.hosts)) / 2);
    case Compression::kNone:
      break;
  }
  return 1;
}

// Returns the seconds in which a rank encodes and decodes its lane of `bytes`.
double coding(double bytes, const DdpSetting& setting) {
  switch (setting.compression) {
    case Compression::kFloat16:
    case Compression::kBfloat16:
      return cost::coding(bytes, setting.hosts, cost::kCastCoding);
    case Compression::kInt8:
      return cost::coding(bytes, setting.hosts, cost::kInt8Coding);
    case Compression::kTopK:
      return cost::coding(bytes, setting.hosts, cost::kTopKCoding);
    case Compression::kNone:
      break;
  }
  return 0;
}

struct Transfer {
  double busy;     // seconds that the next buffer must wait
  double latency;  // seconds from then to the end
};

// Encoded data always uses the direct algorithm in its own chunks, whatever the planner chooses for the rest.
bool is_coded(const DdpSetting& setting) { return setting.compression != Compression::kNone && setting.hosts > 1; }

// count: elements of a buffer. Inside a host, copying and coding overlap with the link.
Transfer transfer(std::size_t count, const DdpSetting& setting, Algorithm algorithm, const cost::Network& network,
                  const cost::ExchangeSizes& sizes) {
  const auto hosts = static_cast<double>(setting.hosts);
  const auto bytes = static_cast<double>(count * sizeof(float));
  const double local = setting.ranks_per_host == 1 ? 0 : cost::two_shot(bytes, setting.ranks_per_host);
  if (setting.hosts == 1) return {local, 0};
  const double wire = bytes * wire_ratio(setting) / network.bandwidth;
  const std::size_t most = chunk_bytes(is_coded(setting), algorithm, sizes, setting.hosts, setting.ranks_per_host);
  const double chunks = std::max(1.0, std::ceil(bytes / static_cast<double>(most)));
  const double work = local + coding(bytes / static_cast<double>(setting.ranks_per_host), setting);
  const double spread = work / chunks;  // of the last chunk
  const double step = network.hop + network.message;
  switch (algorithm) {
    case Algorithm::kRing: {
      const double turn = 2 * (hosts - 1) * step;
      return {std::max({2 * (hosts - 1) / hosts * wire, turn * std::max(1.0, chunks / kWindow), work}), spread};
    }
    case Algorithm::kRecursiveDoubling: {
      const double steps = std::ceil(std::log2(hosts));
      return {std::max(steps * wire, work), steps * step + spread};
    }
    default: {
      const Chunk chunk{0, 0, static_cast<std::size_t>(static_cast<double>(count) / chunks), true};
      const double owners =
          is_coded(setting)
              ? hosts
              : static_cast<double>(owners_of(chunk, sizes, setting.hosts, setting.ranks_per_host, sizeof(float)));
      // What an owner sends: parts of the other owners' shards, and the sum of its own shard to every host.
      const double messages = (owners + hosts - 2) * network.message * chunks;
      // The second hop of the last chunk, which nothing of this buffer overlaps.
      const double last = wire * (hosts - 1) / owners / chunks;
      const double busy = std::max({(owners + hosts - 2) / owners * wire, messages, work});
      return {busy, 2 * network.hop + std::min(last, busy) / 2 + spread};
    }
  }
}

}  // namespace

DdpPrediction simulate_ddp(const std::vector<Layer>& layers, const DdpSetting& setting) {
  if (setting.hosts == 0 || setting.ranks_per_host == 0) {
    throw InvalidArgument("[smdp] a simulation needs at least one host and one rank on each.");
  }
  if (!(setting.bandwidth > 0) || setting.buffer_bytes == 0) {
    throw InvalidArgument("[smdp] a simulation needs a bandwidth and a buffer size above 0.");
  }
  cost::Network network;
  network.bandwidth = setting.bandwidth;
  network.hop = setting.hop_seconds;
  const Planner planner(parse_algorithm(setting.algorithm));

  DdpPrediction prediction;
  for (const Layer& layer : layers) prediction.compute_seconds += layer.forward_seconds + layer.backward_seconds;
  std::vector<Gradient> gradients;
  std::vector<double> ready;
  // Backward ends with the first layer.
  double now = prediction.compute_seconds;
  for (const Layer& layer : layers) {
    for (const std::size_t count : layer.parameters) {
      gradients.push_back({"", count, DType::kFloat32});
      ready.push_back(now);
    }
    now -= layer.backward_seconds;
  }

  // What measure() would find: the smallest all_reduce, and the rate of large ones.
  const auto hosts = static_cast<double>(setting.hosts);
  const cost::Measured measured{2 * network.hop, setting.bandwidth * hosts / std::max(1.0, 2 * (hosts - 1))};
  const cost::FusionSizes sizes =
      cost::fusion_sizes(has_fixed_buffers(setting.compression) ? cost::Measured{} : measured, setting.hosts,
                         setting.ranks_per_host, setting.buffer_bytes);
  const cost::ExchangeSizes exchange = cost::exchange_sizes(measured, setting.hosts, setting.ranks_per_host);
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  const Layout layout = lay_out(gradients, order, sizes, std::max(setting.buffer_bytes, sizes.usual));

  const Algorithm algorithm = is_coded(setting)
                                  ? Algorithm::kDirect
                                  : planner.batch_choice(layout.bytes() / setting.ranks_per_host, setting.hosts);

  double link = 0;
  double end = prediction.compute_seconds;
  for (const PlannedBuffer& buffer : layout.buffers) {
    double filled = 0;
    for (const std::size_t member : buffer.members) filled = std::max(filled, ready[member]);
    const Transfer one = transfer(buffer.count, setting, algorithm, network, exchange);
    const bool alone = setting.hosts == 1 && setting.ranks_per_host == 1;
    link = std::max(link, filled) + (alone ? 0 : one.busy);
    prediction.communication_seconds += alone ? 0 : one.busy;
    end = std::max(end, link + (alone ? 0 : one.latency));
  }
  prediction.buffers = layout.buffers.size();
  prediction.step_seconds = end;
  prediction.exposed_seconds = end - prediction.compute_seconds;
  prediction.efficiency = end > 0 ? prediction.compute_seconds / end : 1;
  return prediction;
}

}  // namespace smdp
