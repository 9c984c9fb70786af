#include "collectives/local.h"

namespace smdp {

Task one_shot_all_reduce(Board& board, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction) {
  const std::size_t bytes = count * size_of(reduction.dtype);
  const std::uint64_t round = board.take_rounds(0, 1);
  for (std::size_t local = 0; local < board.size(); ++local) {
    if (local != board.me()) co_await board.writable(local, 0, round);
  }
  copy_bytes(board.my_slot(0, round), in, bytes);
  board.publish(0, round);
  std::vector<const void*> sources(board.size());
  for (std::size_t local = 0; local < board.size(); ++local) {
    if (local != board.me()) co_await board.produced(local, 0, round);
    sources[local] = local == board.me() ? in : board.slot(local, 0, round);
  }
  if (bytes != 0) reduce(out, sources.data(), sources.size(), count, reduction);
  board.consume(0, round);
}

}  // namespace smdp
