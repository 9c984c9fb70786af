// For every receiver (host h', index i'), the local rank i' mod W of each other host forms the sum of its host's inputs
// and sends it. The receiver adds the hosts' sums in order.
#include <algorithm>
#include <vector>

#include "collectives/hierarchical.h"

namespace smdp {

Task hierarchical_reduce_scatter(Context& context, std::vector<ConstBytes> blocks, std::byte* out,
                                 Reduction reduction) {
  const Members& members = context.members;
  const std::size_t hosts = members.hosts.size();
  const std::size_t own_size = blocks[static_cast<std::size_t>(members.rank)].size;
  const bool has_stages = stores_partial_sums(members);
  const Reduction partial = has_stages ? first_stage(reduction) : middle_stage(reduction);

  // Rounds of the board, the same on all local ranks: in each, every local rank forms at most one sum.
  std::vector<std::vector<int>> work(context.board.size());
  for (std::size_t step = 1; step <= hosts; ++step) {  // this host's own receivers come last
    const std::size_t host = (members.host_index + step) % hosts;
    for (std::size_t index = 0; index < members.hosts[host].size(); ++index) {
      work[index % context.board.size()].push_back(members.hosts[host][index]);
    }
  }
  std::size_t rounds = 0;
  for (const std::vector<int>& list : work) rounds = std::max(rounds, list.size());

  std::vector<std::byte> arriving(hosts * own_size);
  std::vector<Link::Pending> received(hosts, 0);
  for (std::size_t host = 0; host < hosts; ++host) {
    if (host == members.host_index) continue;
    const int sender = members.hosts[host][members.local_index % members.hosts[host].size()];
    context.receive(sender, 0, arriving.data() + host * own_size, own_size, received[host]);
  }
  std::vector<std::vector<std::byte>> sums(work[context.board.me()].size());
  Link::Pending sends = 0;
  int last = -1;
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<ConstBytes> pieces(context.board.size());
    for (std::size_t local = 0; local < context.board.size(); ++local) {
      if (round < work[local].size()) pieces[local] = blocks[static_cast<std::size_t>(work[local][round])];
    }
    const bool mine = round < work[context.board.me()].size();
    std::byte* target = nullptr;
    if (mine) {
      sums[round].resize(pieces[context.board.me()].size);
      target = sums[round].data();
    }
    co_await local_reduce_scatter(context.board, 0, std::move(pieces), target, partial);
    if (!mine) continue;
    const int receiver = work[context.board.me()][round];
    if (receiver == members.rank) {
      if (own_size != 0) copy_bytes(arriving.data() + members.host_index * own_size, target, own_size);
    } else if (members.host_of(receiver) != members.host_index) {
      last = receiver;
      context.send(receiver, 0, target, sums[round].size(), sends);
    }
  }
  std::vector<const void*> sources(hosts);
  for (std::size_t host = 0; host < hosts; ++host) {
    if (host != members.host_index) {
      co_await settled(members.hosts[host][members.local_index % members.hosts[host].size()], received[host]);
    }
    sources[host] = arriving.data() + host * own_size;
  }
  if (own_size != 0) {
    reduce(out, sources.data(), hosts, own_size / size_of(reduction.dtype),
           has_stages ? last_stage(reduction) : reduction);
  }
  co_await settled(last, sends);
}

}  // namespace smdp
