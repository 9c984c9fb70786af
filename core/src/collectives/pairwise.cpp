#include <vector>

#include "collectives/exchange.h"
#include "collectives/hierarchical.h"

namespace smdp {
namespace {

Task remote(Context& context, const std::vector<ConstBytes>& outgoing, const std::vector<Bytes>& incoming) {
  const Members& members = context.members;
  std::vector<Link::Pending> received(static_cast<std::size_t>(members.size), 0);
  Link::Pending sends = 0;
  int last = -1;
  for (int step = 1; step < members.size; ++step) {
    const int from = (members.rank + members.size - step) % members.size;
    const auto index = static_cast<std::size_t>(from);
    if (context.links[index]) context.receive(from, 0, incoming[index].data, incoming[index].size, received[index]);
  }
  for (int step = 1; step < members.size; ++step) {
    const int to = (members.rank + step) % members.size;
    const auto index = static_cast<std::size_t>(to);
    if (!context.links[index]) continue;
    last = to;
    context.send(to, 0, outgoing[index].data, outgoing[index].size, sends);
  }
  for (int rank = 0; rank < members.size; ++rank) {
    co_await settled(rank, received[static_cast<std::size_t>(rank)]);
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
