#include <algorithm>
#include <chrono>

#include "collectives/local.h"
#include "reduce/streamed.h"
#include "transport/progress.h"

namespace smdp {

Task local_reduce_scatter(Board& board, std::size_t lane, std::vector<ConstBytes> pieces, std::byte* out,
                          Reduction reduction, std::size_t in_all) {
  // A slot is divided into one region per receiver, which is every rank except its owner.
  const std::size_t receivers = std::max<std::size_t>(1, board.size() - 1);
  const std::size_t region = std::max<std::size_t>(64, board.slot_bytes() / receivers / 64 * 64);
  const auto region_of = [region](std::size_t receiver, std::size_t owner) {
    return (receiver < owner ? receiver : receiver - 1) * region;
  };
  std::size_t longest = 0;
  std::size_t all = 0;
  for (const ConstBytes& piece : pieces) {
    longest = std::max(longest, piece.size);
    all += piece.size;
  }
  // Every rank reads all of its own data and writes a part.
  const bool is_large = exceeds_caches(std::max(all, in_all) * (board.size() + 1));
  const bool is_streamed = is_large && out != pieces[board.me()].data;
  const auto copy_in = is_large && board.streams_slots(SlotUse::kReduceScatter) ? copy_streamed : copy_bytes;
  const std::size_t chunks = std::max<std::size_t>(1, (longest + region - 1) / region);
  const std::uint64_t first = board.take_rounds(lane, chunks);
  const auto bytes_in = [&](std::size_t local, std::size_t k) {
    return std::min(region, pieces[local].size - std::min(pieces[local].size, k * region));
  };
  std::vector<const void*> sources(board.size());
  const std::size_t element = size_of(reduction.dtype);

  Clock::time_point begin{};
  for (std::size_t k = 0; k <= chunks; ++k) {
    if (k < chunks) {
      for (std::size_t local = 0; local < board.size(); ++local) {
        if (local != board.me()) co_await board.writable(local, lane, first + k);
      }
      for (std::size_t local = 0; local < board.size(); ++local) {
        if (local == board.me() || bytes_in(local, k) == 0) continue;
        copy_in(board.my_slot(lane, first + k) + region_of(local, board.me()), pieces[local].data + k * region,
                bytes_in(local, k));
      }
      board.publish(lane, first + k);
    }
    if (k == 0) continue;
    if (k == kSlots) begin = Clock::now();
    const std::size_t bytes = bytes_in(board.me(), k - 1);
    for (std::size_t local = 0; local < board.size(); ++local) {
      if (local != board.me()) co_await board.produced(local, lane, first + k - 1);
      sources[local] = local == board.me() ? pieces[local].data + (k - 1) * region
                                           : board.slot(local, lane, first + k - 1) + region_of(board.me(), local);
    }
    if (is_streamed) {
      reduce_streamed(out + (k - 1) * region, sources.data(), sources.size(), bytes / element, reduction);
    } else if (bytes != 0) {
      reduce(out + (k - 1) * region, sources.data(), sources.size(), bytes / element, reduction);
    }
    board.consume(lane, first + k - 1);
  }
  if (is_large && chunks > kSlots) {
    board.record(SlotUse::kReduceScatter, std::chrono::duration<double>(Clock::now() - begin).count(), chunks - kSlots);
  }
}

}  // namespace smdp
