// Collectives among the local ranks of a group, through shared memory. The other collectives are built from them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/task.h"
#include "reduce/reduce.h"
#include "transport/transport.h"

namespace smdp {

struct Bytes {
  std::byte* data = nullptr;
  std::size_t size = 0;
};
struct ConstBytes {
  const std::byte* data = nullptr;
  std::size_t size = 0;
};

// all_reduce of up to one slot: every rank publishes its input and sums all of them itself. `out` may equal `in`.
Task one_shot_all_reduce(Board& board, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction);

// all_reduce of any size: each rank sums one slice of every chunk and publishes it. `out` may equal `in`. If `out` is
// null, this rank does not keep the result (for a reduce to a root).
Task two_shot_all_reduce(Board& board, const std::byte* in, std::byte* out, std::size_t count, Reduction reduction);

// all_gather, also uneven: local rank j contributes the concatenation of its `contributions[j]`, which all ranks know.
// The bytes of j != me are written there, and those of `me` are read from there. An empty entry contributes nothing.
// lane: two operations on different lanes may run at once. own_source: if set, this rank's bytes are read from there
// and also copied to contributions[me]. in_all: bytes of the operations of which this one is a part.
Task spread(Board& board, std::size_t lane, std::vector<std::vector<Bytes>> contributions,
            const std::byte* own_source = nullptr, std::size_t in_all = 0);

// reduce_scatter, also uneven: local rank j gets the sum over ranks, in rank order, of the pieces `pieces[j]` (whole
// elements), written to its `out` as a concatenation in order. pieces[j] are this rank's inputs for rank j. `out` may
// equal pieces[me] exactly. in_all: see spread().
Task local_reduce_scatter(Board& board, std::size_t lane, std::vector<ConstBytes> pieces, std::byte* out,
                          Reduction reduction, std::size_t in_all = 0);

// all_to_all, also uneven: outgoing[j] goes to local rank j, and incoming[j] is filled by local rank j. Other ranks
// need not know the sizes; if a size differs from what the receiver expects, all of them throw MismatchError.
Task shuffle(Board& board, const Members& members, std::vector<ConstBytes> outgoing, std::vector<Bytes> incoming);

// Returns when all local ranks have called it.
Task local_barrier(Board& board);

}  // namespace smdp
