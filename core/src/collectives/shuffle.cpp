#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/local.h"
#include "smdp/error.h"

namespace smdp {

namespace {

// A slot begins with a table. It has the bytes for each receiver, where this rank's own entry is the longest of them so
// that all agree on the number of rounds; then the bytes expected from each sender.
using Table = std::vector<std::uint64_t>;

Table table_of(const Board& board, const std::vector<ConstBytes>& outgoing, const std::vector<Bytes>& incoming) {
  Table table(2 * board.size());
  std::uint64_t& longest = table[board.me()];
  for (std::size_t local = 0; local < board.size(); ++local) {
    if (local == board.me()) continue;
    table[local] = outgoing[local].size;
    table[board.size() + local] = incoming[local].size;
    longest = std::max(longest, table[local]);
  }
  return table;
}

// Every rank checks all pairs, so that all detect one that differs.
void check_sizes(const Board& board, const Members& members, const std::vector<Table>& tables) {
  for (std::size_t receiver = 0; receiver < board.size(); ++receiver) {
    for (std::size_t sender = 0; sender < board.size(); ++sender) {
      const std::uint64_t expected = tables[receiver][board.size() + sender];
      const std::uint64_t sent = tables[sender][receiver];
      if (sender == receiver || sent == expected) continue;
      const std::string who =
          receiver == board.me() ? members.tag() : members.prefix() + members.who(board.rank_of(receiver));
      throw CountMismatch(describe_sizes(who, expected, members.who(board.rank_of(sender)), sent, board.operation()));
    }
  }
}

}  // namespace

Task shuffle(Board& board, const Members& members, std::vector<ConstBytes> outgoing, std::vector<Bytes> incoming) {
  const std::size_t size = board.size();
  std::vector<Table> tables(size, table_of(board, outgoing, incoming));
  const std::size_t table_bytes = (2 * size * sizeof(std::uint64_t) + 63) / 64 * 64;
  const std::size_t region = std::max<std::size_t>(64, (board.slot_bytes() - table_bytes) / size / 64 * 64);
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
    if (k == 0) std::memcpy(slot, tables[board.me()].data(), 2 * size * sizeof(std::uint64_t));
    for (std::size_t local = 0; local < size; ++local) {
      if (local == board.me() || part(outgoing[local].size, k) == 0) continue;
      copy_bytes(slot + table_bytes + local * region, outgoing[local].data + k * region, part(outgoing[local].size, k));
    }
    board.publish(0, round);
    if (k == 0) {
      std::uint64_t longest = 0;
      for (std::size_t local = 0; local < size; ++local) {
        if (local != board.me()) {
          co_await board.produced(local, 0, round);
          std::memcpy(tables[local].data(), board.slot(local, 0, round), 2 * size * sizeof(std::uint64_t));
        }
        longest = std::max(longest, tables[local][local]);
      }
      check_sizes(board, members, tables);
      chunks = std::max<std::size_t>(1, (longest + region - 1) / region);
    }
    for (std::size_t local = 0; local < size; ++local) {
      if (local == board.me()) continue;
      co_await board.produced(local, 0, round);
      const std::size_t bytes = part(incoming[local].size, k);
      if (bytes == 0) continue;
      copy_bytes(incoming[local].data + k * region, board.slot(local, 0, round) + table_bytes + board.me() * region,
                 bytes);
    }
    board.consume(0, round);
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
