#include <algorithm>
#include <chrono>

#include "collectives/local.h"
#include "collectives/stream.h"
#include "reduce/streamed.h"
#include "transport/progress.h"

namespace smdp {

Task spread(Board& board, std::size_t lane, std::vector<std::vector<Bytes>> contributions, const std::byte* own_source,
            std::size_t in_all) {
  const std::size_t most = board.slot_bytes();
  std::size_t longest = 0;
  std::size_t all = 0;
  std::vector<std::size_t> totals;
  std::vector<Cursor> cursors;
  for (std::vector<Bytes>& pieces : contributions) {
    totals.push_back(total_size(pieces));
    longest = std::max(longest, totals.back());
    all += totals.back();
    cursors.emplace_back(std::move(pieces));
  }
  // Read once, written by every rank.
  const bool is_large = exceeds_caches(std::max(all, in_all) * (board.size() + 1));
  const SlotUse use = longest == all ? SlotUse::kBroadcast : SlotUse::kAllGather;  // by contributors: a chunk's cost
  const Copy copy_in = is_large && board.streams_slots(use) ? copy_streamed : copy_bytes;
  const Copy copy_out = is_large ? copy_streamed : copy_bytes;
  const std::size_t chunks = std::max<std::size_t>(1, (longest + most - 1) / most);
  const std::uint64_t first = board.take_rounds(lane, chunks);
  const auto bytes_in = [&](std::size_t local, std::size_t k) {
    return std::min(most, totals[local] - std::min(totals[local], k * most));
  };

  Clock::time_point begin{};
  for (std::size_t k = 0; k <= chunks; ++k) {
    // One round ahead: chunk k is published before chunk k - 1 is read.
    if (k < chunks && (bytes_in(board.me(), k) != 0 || longest == 0)) {
      for (std::size_t local = 0; local < board.size(); ++local) {
        if (local != board.me()) co_await board.writable(local, lane, first + k);
      }
      const std::size_t bytes = bytes_in(board.me(), k);
      if (own_source == nullptr) {
        cursors[board.me()].read(board.my_slot(lane, first + k), bytes, copy_in);
        board.publish(lane, first + k);
      } else {
        if (bytes != 0) copy_in(board.my_slot(lane, first + k), own_source + k * most, bytes);
        board.publish(lane, first + k);
        cursors[board.me()].write(own_source + k * most, bytes, copy_out);  // still in the cache
      }
    }
    if (k == 0) continue;
    if (k == kSlots) begin = Clock::now();
    for (std::size_t local = 0; local < board.size(); ++local) {
      const std::size_t bytes = bytes_in(local, k - 1);
      if (local == board.me() || (bytes == 0 && longest != 0)) continue;
      co_await board.produced(local, lane, first + k - 1);
      cursors[local].write(board.slot(local, lane, first + k - 1), bytes, copy_out);
    }
    board.consume(lane, first + k - 1);
  }
  if (is_large && chunks > kSlots) {
    board.record(use, std::chrono::duration<double>(Clock::now() - begin).count(), chunks - kSlots);
  }
}

}  // namespace smdp
