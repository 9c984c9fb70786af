// Two-shot all_reduce in shared memory. Per chunk k, with W local ranks and slice i owned by rank i:
//
//   lane 0, round k: every rank copies in the slices that others own
//   lane 1, round k: the owner sums its slice, reading its own part from private memory, into `out` and, in place,
//                    into the slot of its right neighbour, where it has just read that neighbour's part
//   then everybody copies the slices of the others out of those slots, and gives lane 0's slots free
//
// Summing in place keeps a cache line from going between cores more than once each way: a slot of one's own for the
// result would first have to be fetched back from those who read it last. Lane 1 has flags only, no data.
//
// The copy-in of chunk k + 1 comes before the wait for lane 1 of chunk k, so that ranks rarely wait for each other,
// also where k + 1 is of the next item, if that is filled by then: ranks may differ in what they have. Memory traffic
// at W = 2 is 4 bytes per byte reduced (data_parallel: improved two-shot).
#include <algorithm>

#include "collectives/local.h"
#include "sharding/equal_shards.h"

namespace smdp {
namespace {

struct TwoShotChunk {
  std::size_t item;
  std::size_t begin;  // elements of the item
  std::size_t count;
  bool is_last;  // of its item
};

// Equal chunks per item: a short last one would leave some ranks without work.
std::vector<TwoShotChunk> cut_batch(const Batch& batch, std::size_t first, std::size_t last, std::size_t slot_bytes) {
  std::vector<TwoShotChunk> chunks;
  for (std::size_t i = first; i < last; ++i) {
    const std::size_t count = batch.items()[i].count;
    const std::size_t element = size_of(batch.items()[i].reduction.dtype);
    const std::size_t most = slot_bytes / element;
    const std::size_t parts = std::max<std::size_t>(1, (count + most - 1) / most);
    const std::size_t align = std::max<std::size_t>(1, 64 / element);
    const std::size_t usual = std::min(most, ((count + parts - 1) / parts + align - 1) / align * align);
    std::size_t begin = 0;
    do {
      const std::size_t size = std::min(usual, count - begin);
      chunks.push_back({i, begin, size, begin + size == count});
      begin += size;
    } while (begin < count);
  }
  return chunks;
}

// Copies what others own of a chunk to its place in the slot: slices keep their offset within the chunk.
void copy_in(const Board& board, const Batch::Item& item, const TwoShotChunk& chunk, std::byte* slot) {
  const std::size_t element = size_of(item.reduction.dtype);
  for (std::size_t owner = 0; owner < board.size(); ++owner) {
    if (owner == board.me()) continue;
    const Slice slice = slice_of(chunk.count, board.size(), owner, element);
    if (slice.size() == 0) continue;
    copy_bytes(slot + slice.begin * element, item.in + (chunk.begin + slice.begin) * element, slice.size() * element);
  }
}

// Writes the sum to the slot and, if `out` is not null, there, too. Piecewise, so that the second write reads from the
// first-level cache. Advances `sources`.
void sum_to_both(std::byte* slot, std::byte* out, std::vector<const void*>& sources, std::size_t count,
                 const Reduction& reduction) {
  constexpr std::size_t kPieceBytes = std::size_t{8} << 10;
  const std::size_t element = size_of(reduction.dtype);
  for (std::size_t begin = 0; begin < count; begin += kPieceBytes / element) {
    const std::size_t n = std::min(count - begin, kPieceBytes / element);
    reduce(slot + begin * element, sources.data(), sources.size(), n, reduction);
    if (out != nullptr) copy_bytes(out + begin * element, slot + begin * element, n * element);
    for (const void*& source : sources) source = static_cast<const std::byte*>(source) + n * element;
  }
}

}  // namespace

Task two_shot_all_reduce(Board& board, const Batch& batch, std::size_t first_item, std::size_t last_item) {
  const std::vector<TwoShotChunk> chunks = cut_batch(batch, first_item, last_item, board.slot_bytes());
  const std::uint64_t first[2] = {board.take_rounds(0, chunks.size()), board.take_rounds(1, chunks.size())};
  std::vector<const void*> sources(board.size());
  // Where the owner of a slice leaves its sum.
  const auto result_of = [&board](std::size_t owner, std::uint64_t round) {
    return board.slot((owner + 1) % board.size(), 0, round);
  };

  std::size_t published = 0;
  for (std::size_t k = 0; k < chunks.size(); ++k) {
    for (; published < std::min(k + 2, chunks.size()); ++published) {
      const TwoShotChunk& next = chunks[published];
      if (!batch.is_filled(next.item)) {
        if (published > k) break;
        co_await until(-1, [&batch, &next] { return batch.is_filled(next.item); });
      }
      for (std::size_t local = 0; local < board.size(); ++local) {
        if (local != board.me()) co_await board.writable(local, 0, first[0] + published);
      }
      const Batch::Item& item = batch.items()[next.item];
      if (next.begin == 0) item.begin();
      copy_in(board, item, next, board.my_slot(0, first[0] + published));
      board.publish(0, first[0] + published);
    }

    const std::uint64_t round[2] = {first[0] + k, first[1] + k};
    const TwoShotChunk& chunk = chunks[k];
    const Batch::Item& item = batch.items()[chunk.item];
    const std::size_t element = size_of(item.reduction.dtype);
    const Slice own = slice_of(chunk.count, board.size(), board.me(), element);
    const std::byte* own_in = item.in + (chunk.begin + own.begin) * element;
    for (std::size_t local = 0; local < board.size(); ++local) {
      if (local != board.me()) {
        co_await board.produced(local, 0, round[0]);
      }
      sources[local] = local == board.me() ? own_in : board.slot(local, 0, round[0]) + own.begin * element;
    }
    if (own.size() != 0) {
      sum_to_both(result_of(board.me(), round[0]) + own.begin * element,
                  item.out == nullptr ? nullptr : item.out + (chunk.begin + own.begin) * element, sources, own.size(),
                  item.reduction);
    }
    board.publish(1, round[1]);

    for (std::size_t local = 0; local < board.size(); ++local) {
      if (local == board.me()) continue;
      co_await board.produced(local, 1, round[1]);
      const Slice slice = slice_of(chunk.count, board.size(), local, element);
      if (item.out != nullptr && slice.size() != 0) {
        copy_bytes(item.out + (chunk.begin + slice.begin) * element, result_of(local, round[0]) + slice.begin * element,
                   slice.size() * element);
      }
    }
    board.consume(0, round[0]);
    board.consume(1, round[1]);
    if (chunk.is_last) item.end();
  }
}

Task two_shot_all_reduce(Board& board, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction) {
  const Batch batch({{in, out, count, reduction}}, 1);
  co_await two_shot_all_reduce(board, batch, 0, 1);
}

}  // namespace smdp
