#include <algorithm>

#include "collectives/local.h"

namespace smdp {

Task local_reduce_scatter(Board& board, std::size_t lane, std::vector<ConstBytes> pieces, std::byte* out,
                          Reduction reduction) {
  // A slot is divided into one region per receiver.
  const std::size_t region = std::max<std::size_t>(64, board.slot_bytes() / board.size() / 64 * 64);
  std::size_t longest = 0;
  for (const ConstBytes& piece : pieces) longest = std::max(longest, piece.size);
  const std::size_t chunks = std::max<std::size_t>(1, (longest + region - 1) / region);
  const std::uint64_t first = board.take_rounds(lane, chunks);
  const auto bytes_in = [&](std::size_t local, std::size_t k) {
    return std::min(region, pieces[local].size - std::min(pieces[local].size, k * region));
  };
  std::vector<const void*> sources(board.size());
  const std::size_t element = size_of(reduction.dtype);

  for (std::size_t k = 0; k <= chunks; ++k) {
    if (k < chunks) {
      for (std::size_t local = 0; local < board.size(); ++local) {
        if (local != board.me()) co_await board.writable(local, lane, first + k);
      }
      for (std::size_t local = 0; local < board.size(); ++local) {
        if (local == board.me() || bytes_in(local, k) == 0) continue;
        copy_bytes(board.my_slot(lane, first + k) + local * region, pieces[local].data + k * region,
                   bytes_in(local, k));
      }
      board.publish(lane, first + k);
    }
    if (k == 0) continue;
    const std::size_t bytes = bytes_in(board.me(), k - 1);
    for (std::size_t local = 0; local < board.size(); ++local) {
      if (local != board.me()) co_await board.produced(local, lane, first + k - 1);
      sources[local] = local == board.me() ? pieces[local].data + (k - 1) * region
                                           : board.slot(local, lane, first + k - 1) + board.me() * region;
    }
    if (bytes != 0) {
      reduce(out + (k - 1) * region, sources.data(), sources.size(), bytes / element, reduction);
    }
    board.consume(lane, first + k - 1);
  }
}

}  // namespace smdp
