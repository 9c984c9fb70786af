// A binomial tree over hosts. Hosts are numbered from the root's: the parent of v is v without its lowest set bit, and
// its children are v + 2^k for every k below that bit. One rank per host, its delegate, takes part. Data is sent in
// chunks, so that all levels of the tree and shared memory work at the same time.
//
// A rank that only sends would not learn of a mismatch, so an empty greeting goes the other way: up a broadcast's tree,
// sent once all hosts below have greeted, and down a reduce's tree.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "collectives/hierarchical.h"

namespace smdp {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{512} << 10;
constexpr std::uint64_t kGreeting = std::numeric_limits<std::uint64_t>::max();  // a slot distinct from those of chunks

struct Tree {
  int parent = -1;
  std::vector<int> children;
  std::size_t delegate = 0;  // local index on this host

  Tree(const Members& members, int root) {
    const std::size_t hosts = members.hosts.size();
    const std::size_t root_host = members.host_of(root);
    const std::size_t root_index = members.local_index_of(root);
    const auto delegate_of = [&](std::size_t virtual_host) {
      const std::vector<int>& ranks = members.hosts[(virtual_host + root_host) % hosts];
      return ranks[root_index % ranks.size()];
    };
    delegate = root_index % members.local_ranks().size();
    const std::size_t me = (members.host_index + hosts - root_host) % hosts;
    const std::size_t limit = me == 0 ? std::bit_ceil(hosts) : me & (~me + 1);
    if (me != 0) parent = delegate_of(me & (me - 1));
    for (std::size_t bit = 1; bit < limit; bit <<= 1) {
      if (me + bit < hosts) children.push_back(delegate_of(me + bit));
    }
  }
};

}  // namespace

Task tree_broadcast(Context& context, std::byte* data, std::size_t size, int root) {
  const Tree tree(context.members, root);
  const bool is_delegate = context.members.local_index == tree.delegate;
  const std::size_t chunks = std::max<std::size_t>(1, (size + kChunkBytes - 1) / kChunkBytes);
  const auto chunk = [&](std::size_t k) {
    return Bytes{data + std::min(size, k * kChunkBytes), std::min(kChunkBytes, size - std::min(size, k * kChunkBytes))};
  };
  std::vector<Link::Pending> received(chunks, 0);
  std::vector<Link::Pending> greeted(tree.children.size(), 0);
  Link::Pending sends = 0;
  const bool greets_at_once = tree.children.empty();
  if (is_delegate) {
    for (std::size_t i = 0; i < tree.children.size(); ++i) {
      context.receive(tree.children[i], kGreeting, nullptr, 0, greeted[i]);
    }
  }
  if (is_delegate && tree.parent >= 0) {
    if (greets_at_once) context.send(tree.parent, kGreeting, nullptr, 0, sends);
    for (std::size_t k = 0; k < chunks; ++k) {
      context.receive(tree.parent, k, chunk(k).data, chunk(k).size, received[k]);
    }
  }
  for (std::size_t k = 0; k < chunks; ++k) {
    if (is_delegate) {
      co_await settled(tree.parent, received[k]);
      for (const int child : tree.children) context.send(child, k, chunk(k).data, chunk(k).size, sends);
    }
    if (context.board.size() > 1) {
      std::vector<std::vector<Bytes>> contributions(context.board.size());
      contributions[tree.delegate].push_back(chunk(k));
      co_await spread(context.board, 0, std::move(contributions));
    }
  }
  if (is_delegate) {
    for (std::size_t i = 0; i < tree.children.size(); ++i) co_await settled(tree.children[i], greeted[i]);
    if (tree.parent >= 0 && !greets_at_once) context.send(tree.parent, kGreeting, nullptr, 0, sends);
  }
  co_await settled(tree.children.empty() ? tree.parent : tree.children.front(), sends);
}

Task tree_reduce(Context& context, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction,
                 int root) {
  const Tree tree(context.members, root);
  const bool is_delegate = context.members.local_index == tree.delegate;
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t per_chunk = kChunkBytes / element;
  const std::size_t chunks = std::max<std::size_t>(1, (count + per_chunk - 1) / per_chunk);
  std::vector<std::byte> host_sum(is_delegate ? count * element : 0);
  std::vector<std::byte> arriving(tree.children.size() * per_chunk * element);
  Link::Pending sends = 0;
  Link::Pending greeting = 0;
  if (is_delegate) {
    if (tree.parent >= 0) context.receive(tree.parent, kGreeting, nullptr, 0, greeting);
    for (const int child : tree.children) context.send(child, kGreeting, nullptr, 0, sends);
  }
  for (std::size_t k = 0; k < chunks; ++k) {
    const std::size_t begin = std::min(count, k * per_chunk);
    const std::size_t elements = std::min(per_chunk, count - begin);
    std::vector<Link::Pending> received(tree.children.size(), 0);
    if (is_delegate) {
      for (std::size_t i = 0; i < tree.children.size(); ++i) {
        context.receive(tree.children[i], k, arriving.data() + i * per_chunk * element, elements * element,
                        received[i]);
      }
    }
    std::byte* sum = is_delegate ? host_sum.data() + begin * element : nullptr;
    if (context.board.size() > 1) {
      co_await two_shot_all_reduce(context.board, in + begin * element, sum, elements, first_stage(reduction));
    } else if (elements != 0) {
      const void* only = in + begin * element;
      reduce(sum, &only, 1, elements, first_stage(reduction));
    }
    if (!is_delegate) continue;
    std::vector<const void*> sources{sum};
    for (std::size_t i = 0; i < tree.children.size(); ++i) {
      co_await settled(tree.children[i], received[i]);
      sources.push_back(arriving.data() + i * per_chunk * element);
    }
    if (tree.parent >= 0) {
      if (elements != 0) reduce(sum, sources.data(), sources.size(), elements, middle_stage(reduction));
      context.send(tree.parent, k, sum, elements * element, sends);
    } else if (elements != 0) {
      reduce(out + begin * element, sources.data(), sources.size(), elements, last_stage(reduction));
    }
  }
  co_await settled(tree.parent, greeting);
  co_await settled(tree.parent, sends);
}

}  // namespace smdp
