// Rank (host h, index i) sends its block to rank (h', i mod W') of every other host h', which contributes it there
// together with its own block. A block is thereby sent to a host once, whatever the number of its ranks.
#include <vector>

#include "collectives/hierarchical.h"

namespace smdp {

Task hierarchical_all_gather(Context& context, std::vector<Bytes> blocks, std::uint64_t slot) {
  const Members& members = context.members;
  const auto block = [&](int rank) { return blocks[static_cast<std::size_t>(rank)]; };
  const Bytes own = block(members.rank);
  // What each local rank contributes, in an order known to all.
  std::vector<std::vector<Bytes>> contributions(context.board.size());
  for (std::size_t local = 0; local < context.board.size(); ++local) {
    contributions[local].push_back(block(members.local_ranks()[local]));
  }
  Link::Pending sends = 0;
  std::vector<Link::Pending> received(static_cast<std::size_t>(members.size), 0);
  int last = -1;
  for (std::size_t host = 0; host < members.hosts.size(); ++host) {
    if (host == members.host_index) continue;
    const std::vector<int>& ranks = members.hosts[host];
    for (std::size_t index = 0; index < ranks.size(); ++index) {
      const std::size_t delegate = index % context.board.size();
      contributions[delegate].push_back(block(ranks[index]));
      if (delegate != context.board.me()) continue;
      const Bytes target = block(ranks[index]);
      context.receive(ranks[index], slot, target.data, target.size, received[static_cast<std::size_t>(ranks[index])]);
    }
    last = ranks[members.local_index % ranks.size()];
    context.send(last, slot, own.data, own.size, sends);
  }
  for (int rank = 0; rank < members.size; ++rank) {
    co_await settled(rank, received[static_cast<std::size_t>(rank)]);
  }
  if (context.board.size() > 1) co_await spread(context.board, 0, std::move(contributions));
  co_await settled(last, sends);
}

}  // namespace smdp
