#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/local.h"
#include "smdp/error.h"

namespace smdp {

Task shuffle(Board& board, const Members& members, std::vector<ConstBytes> outgoing, std::vector<Bytes> incoming) {
  // A slot begins with a table: bytes for each receiver, and the longest of them, so that all agree on the rounds.
  const std::size_t size = board.size();
  const std::size_t table = (size * sizeof(std::uint64_t) + 63) / 64 * 64;
  const std::size_t region = std::max<std::size_t>(64, (board.slot_bytes() - table) / size / 64 * 64);
  std::size_t longest = 0;
  for (std::size_t local = 0; local < size; ++local) {
    if (local != board.me()) longest = std::max(longest, outgoing[local].size);
  }
  const auto part = [&](std::size_t total, std::size_t k) {
    return std::min(region, total - std::min(total, k * region));
  };

  std::size_t chunks = 1;
  for (std::size_t k = 0; k < chunks; ++k) {
    const std::uint64_t round = board.take_rounds(0, 1);
    for (std::size_t local = 0; local < size; ++local) {
      if (local != board.me()) co_await board.writable(local, 0, round);
    }
    std::byte* slot = board.my_slot(0, round);
    for (std::size_t local = 0; local < size; ++local) {
      const std::uint64_t bytes = local == board.me() ? longest : outgoing[local].size;
      std::memcpy(slot + local * sizeof bytes, &bytes, sizeof bytes);
      if (local == board.me() || part(outgoing[local].size, k) == 0) continue;
      copy_bytes(slot + table + local * region, outgoing[local].data + k * region, part(outgoing[local].size, k));
    }
    board.publish(0, round);
    for (std::size_t local = 0; local < size; ++local) {
      if (local == board.me()) continue;
      co_await board.produced(local, 0, round);
      const std::byte* theirs = board.slot(local, 0, round);
      std::uint64_t sent = 0;
      std::uint64_t their_longest = 0;
      std::memcpy(&sent, theirs + board.me() * sizeof sent, sizeof sent);
      std::memcpy(&their_longest, theirs + local * sizeof sent, sizeof sent);
      longest = std::max<std::size_t>(longest, their_longest);
      if (sent != incoming[local].size) {
        throw MismatchError(describe_sizes(members.tag(), incoming[local].size, members.who(board.rank_of(local)), sent,
                                           board.operation()));
      }
      const std::size_t bytes = part(incoming[local].size, k);
      if (bytes != 0) {
        copy_bytes(incoming[local].data + k * region, theirs + table + board.me() * region, bytes);
      }
    }
    board.consume(0, round);
    chunks = std::max<std::size_t>(1, (longest + region - 1) / region);
  }
  if (outgoing[board.me()].size != 0 && incoming[board.me()].data != outgoing[board.me()].data) {
    std::memmove(incoming[board.me()].data, outgoing[board.me()].data, outgoing[board.me()].size);
  }
}

Task local_barrier(Board& board) {
  const std::uint64_t round = board.take_rounds(0, 1);
  board.publish(0, round);
  for (std::size_t local = 0; local < board.size(); ++local) {
    if (local != board.me()) co_await board.produced(local, 0, round);
  }
  board.consume(0, round);
}

}  // namespace smdp
