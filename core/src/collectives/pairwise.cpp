#include <cstdint>
#include <vector>

#include "collectives/exchange.h"
#include "collectives/hierarchical.h"
#include "smdp/error.h"

namespace smdp {
namespace {

constexpr std::uint64_t kData = 0;
constexpr std::uint64_t kExpected = 1;

// Each rank also sends how much it expects, so that both sides detect a difference.
Task remote(Context& context, const std::vector<ConstBytes>& outgoing, const std::vector<Bytes>& incoming) {
  const Members& members = context.members;
  const auto size = static_cast<std::size_t>(members.size);
  std::vector<Link::Pending> received(size, 0);
  std::vector<std::uint64_t> expected(size);
  std::vector<std::uint64_t> expected_there(size);
  Link::Pending sends = 0;
  int last = -1;
  for (int step = 1; step < members.size; ++step) {
    const int from = (members.rank + members.size - step) % members.size;
    const auto index = static_cast<std::size_t>(from);
    if (!context.links[index]) continue;
    context.receive(from, kExpected, reinterpret_cast<std::byte*>(&expected_there[index]), sizeof(std::uint64_t),
                    received[index]);
    context.receive(from, kData, incoming[index].data, incoming[index].size, received[index]);
  }
  for (int step = 1; step < members.size; ++step) {
    const int to = (members.rank + step) % members.size;
    const auto index = static_cast<std::size_t>(to);
    if (!context.links[index]) continue;
    last = to;
    expected[index] = incoming[index].size;
    context.send(to, kExpected, reinterpret_cast<const std::byte*>(&expected[index]), sizeof(std::uint64_t), sends);
    context.send(to, kData, outgoing[index].data, outgoing[index].size, sends);
  }
  for (int rank = 0; rank < members.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (!context.links[index]) continue;
    co_await settled(rank, received[index]);
    if (expected_there[index] == outgoing[index].size) continue;
    throw CountMismatch(describe_sizes(members.prefix() + members.who(rank), expected_there[index],
                                       members.who(members.rank), outgoing[index].size, context.board.operation()));
  }
  co_await settled(last, sends);
}

}  // namespace

Task pairwise(Context& context, std::vector<ConstBytes> outgoing, std::vector<Bytes> incoming) {
  std::vector<ConstBytes> local_outgoing;
  std::vector<Bytes> local_incoming;
  for (const int rank : context.members.local_ranks()) {
    local_outgoing.push_back(outgoing[static_cast<std::size_t>(rank)]);
    local_incoming.push_back(incoming[static_cast<std::size_t>(rank)]);
  }
  std::vector<Task> both;
  both.push_back(shuffle(context.board, context.members, std::move(local_outgoing), std::move(local_incoming)));
  if (!context.is_single_host()) both.push_back(remote(context, outgoing, incoming));
  co_await when_all(std::move(both));
}

Task hierarchical_barrier(Context& context) {
  co_await local_barrier(context.board);
  if (context.is_single_host()) co_return;
  const Members& members = context.members;
  if (members.local_index == 0) {
    std::vector<Link::Pending> received(members.hosts.size(), 0);
    Link::Pending sends = 0;
    for (std::size_t host = 0; host < members.hosts.size(); ++host) {
      if (host == members.host_index) continue;
      context.receive(members.hosts[host][0], 0, nullptr, 0, received[host]);
      context.send(members.hosts[host][0], 0, nullptr, 0, sends);
    }
    for (std::size_t host = 0; host < members.hosts.size(); ++host) {
      co_await settled(members.hosts[host][0], received[host]);
    }
    co_await settled(-1, sends);
  }
  co_await local_barrier(context.board);
}

}  // namespace smdp
