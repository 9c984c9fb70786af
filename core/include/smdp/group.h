// A set of ranks that communicate: the world or a part of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "smdp/arrival.h"
#include "smdp/dtype.h"
#include "smdp/export.h"
#include "smdp/meeting.h"
#include "smdp/operation.h"
#include "smdp/store.h"

namespace smdp {

class Batch;
class SparseSum;
struct GroupSetup;

// How a group is made. Values that come from SMDP_* variables keep their name without the prefix.
struct GroupOptions {
  // Unique among the groups that share a store.
  std::string name = "world";
  // Number of this rank in the world, for messages, where the group is a part of it. -1: ranks are the world's.
  int world_rank = -1;
  // Ranks of the world, for traces, likewise. -1: as many as the group has.
  int world_size = -1;
  // Deadline of every operation that names none. SMDP_TIMEOUT, default 30 min.
  std::chrono::milliseconds timeout{1'800'000};
  // Deadline for all ranks to come. SMDP_INIT_TIMEOUT, default 5 min.
  std::chrono::milliseconds init_timeout{300'000};
  // Shared secret that every connection must prove. Empty: rank 0 draws one and hands it out through the store.
  std::string secret;
  // Address (name or number) by which others reach rank 0. Empty: taken from the route to it, else the loopback.
  std::string master_addr;
  // Interfaces to use, as NCCL spells them ("eth", "=eth0,eth1", "^docker"); several names are several rails, over
  // which the data streams are spread. Empty: the route to the master.
  std::string socket_ifname;
  // Ranks share a host only if this is equal, too. Empty: boot id and network namespace. For tests, mostly.
  std::string host_id;
  // See planner.h. Leave alone unless you measure.
  std::string algorithm = "auto";
  // SMDP_DETERMINISTIC=strict: only algorithms that add in rank order.
  bool strict = false;
  // Progress threads of the process; groups take turns. SMDP_THREADS.
  int threads = 1;
  // TCP streams to each rank on another host; at least one per rail. More help where one connection cannot fill the
  // link. 0: one per rail; gradients try more, and use them where they are faster.
  int streams = 0;
  // An operation that waits this long is logged, with the ranks it waits for; 0: never. SMDP_STALL_TIME.
  std::chrono::milliseconds stall_time{60'000};
  // Directory for the trace of this process, see observability.h. Empty: none. SMDP_TRACE.
  std::string trace;
  // Bytes of a shared-memory chunk (rounded to 4 KiB). 0: 256 KiB, or 2 MiB where ranks outnumber cores, and for
  // gradients.
  std::size_t chunk_bytes = 0;

  // From names without SMDP_ ("timeout" in seconds, "secret", ...). Unknown ones are ignored, wrong values throw
  // ConfigError.
  SMDP_API static GroupOptions from(const std::map<std::string, std::string>& values);
};

// A buffer of whole elements in host memory.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  // elements
};
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
};

// What the blocks of a call look like, so that ranks find shapes that differ where counts do not: one shape for all, or
// one per block. Empty: not compared with what other ranks give.
using Shapes = std::vector<std::vector<std::int64_t>>;

// How one call behaves.
struct Call {
  std::optional<std::chrono::milliseconds> timeout;  // default: the group's
  bool async = false;                                // return before it is done
  std::shared_ptr<Arrival> arrival;                  // what a collective reads comes later; null: is there
  bool is_counted = true;                            // in operation_counts()
  std::function<std::string()> label;                // what the data is, for messages; may be empty. Any thread
  std::string name;                                  // what all ranks call it, which is compared; may be empty
  // Ranks may make this call before or after others of this kind: it meets those of the same name, in rank 0's order.
  // Two calls of one name may not be under way at once. Each costs one small message in addition. Before a rank makes a
  // call that is not by name, it must wait for those by name that it has made.
  bool by_name = false;
  // Asked now and then by a blocking call: true ends it and closes the group with ClosedError (Ctrl-C). May be empty.
  std::function<bool()> interrupted;
};

// All ranks of a group must call the same collectives in the same order; calls of one rank may come from any thread,
// but their order is then the program's business. Buffers must live until the operation is done. Wrong arguments
// throw InvalidArgument before anything is sent; everything else arrives with the operation. After a MismatchError of a
// collective that all ranks get in that very call, the group goes on; docs/errors.md says where. After any other
// failure it is closed: later calls throw the same error.
class SMDP_API Group {
 public:
  using Handle = std::shared_ptr<Operation>;  // null when the call was not async

  // Blocks until all `size` ranks have called it with the same name and store.
  Group(std::shared_ptr<Store> store, int rank, int size, const GroupOptions& options);
  // For smdp's own bindings, which know more of how it is made.
  Group(const GroupSetup& setup, std::shared_ptr<Store> store, int rank, int size);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Leaves the group, as shutdown() does, unless find() has given it to somebody else.
  ~Group();

  // Number of the group in this process, for find().
  std::uint64_t id() const;
  // The same group; null if it is gone.
  static std::shared_ptr<Group> find(std::uint64_t id);

  int rank() const;
  int size() const;
  // Of a rank of this group.
  int world_rank(int rank) const;
  const std::string& name() const;
  std::string tag() const;  // "[smdp] rank 3 of 8 (host b)", with which messages begin
  int local_rank() const;   // index among the ranks of this host
  int local_size() const;
  int host_index() const;
  const std::vector<std::vector<int>>& hosts() const;
  const std::vector<std::string>& host_names() const;  // by rank
  // To each rank on another host, where measuring may tell whether they are faster than one; 0: there is nothing to
  // tell.
  int streams_to_try() const;

  // Buffers of one call lie apart, but this rank's input may be where its part of the result goes. Outputs may be one
  // and the same memory, for results of which nobody reads more than one; which it then holds is not said.
  // factor: of this rank's input, for kPremulSum.
  Handle all_reduce(const void* in, void* out, std::span<const std::int64_t> shape, DType dtype, ReduceOp op,
                    double factor = 1.0, const Call& call = {});
  // All ranks give the same shape, dtype and number of sparse dimensions. op: kSum, kAvg or kPremulSum.
  Handle all_reduce_sparse(std::shared_ptr<SparseSum> sum, ReduceOp op, double factor = 1.0, const Call& call = {});
  // Sums tensors as they are filled, for gradient_reducer.h. All ranks give lists of the same counts and dtypes.
  Handle all_reduce_batch(std::shared_ptr<Batch> batch, const Call& call);
  // After Batch::fill().
  void wake();
  // out is used on the root only.
  Handle reduce(const void* in, void* out, std::span<const std::int64_t> shape, DType dtype, ReduceOp op, int root,
                double factor = 1.0, const Call& call = {});
  // The root, too, waits until the ranks of its host and one of each host below it have called it, so that it hears
  // of a mismatch.
  Handle broadcast(void* data, std::span<const std::int64_t> shape, DType dtype, int root, const Call& call = {});
  // out: one buffer per rank; counts may differ between ranks, but all ranks give the same list of counts. One shape is
  // that of each block.
  Handle all_gather(ConstBuffer in, std::vector<Buffer> out, DType dtype, const Call& call = {},
                    const Shapes& shapes = {});
  // in: one buffer per receiver, the same counts on all ranks. One shape is that of all blocks together.
  Handle reduce_scatter(std::vector<ConstBuffer> in, Buffer out, DType dtype, ReduceOp op, double factor = 1.0,
                        const Call& call = {}, const Shapes& shapes = {});
  // in[j] goes to rank j, out[j] comes from rank j. One shape is that of all blocks together, which are alike.
  Handle all_to_all(std::vector<ConstBuffer> in, std::vector<Buffer> out, DType dtype, const Call& call = {},
                    const Shapes& shapes = {});
  // out is empty except on the root. The shape is that of `in`, of which the first extent is this rank's own.
  Handle gather(ConstBuffer in, std::vector<Buffer> out, DType dtype, int root, const Call& call = {},
                const Shapes& shapes = {});
  // in is empty except on the root. The shape is that of `out`, likewise.
  Handle scatter(std::vector<ConstBuffer> in, Buffer out, DType dtype, int root, const Call& call = {},
                 const Shapes& shapes = {});
  Handle barrier(const Call& call = {});
  // Point to point, matched by (source, tag) in order; independent of collectives. source -1: from anybody.
  Handle send(ConstBuffer data, DType dtype, int destination, std::int64_t tag, const Call& call = {});
  Handle recv(Buffer data, DType dtype, int source, std::int64_t tag, const Call& call = {});
  // A send, not of nothing, that the destination need not take: it waits, without a deadline, for recv() or refuse()
  // there, and ends without an error when the destination leaves. The memory is read until it ends.
  Handle offer(ConstBuffer data, DType dtype, int destination, std::int64_t tag);
  // Instead of recv(): the next offer of `source` with this tag will not be taken. What is no offer passes it.
  void refuse(int source, std::int64_t tag);
  // Sends all that is offered, to be kept at its destinations, so that this rank can leave when the handles have ended.
  void push_offers();

  // For a group that is made of these ranks of this one by itself: PeerLostError once one of them has died, also after
  // this group was closed, or has left.
  Obstacle watch(std::vector<int> ranks) const;

  // Collective: ranks with the same color (>= 0) form a group, ordered by key, then rank. Null for color < 0. Throws as
  // twin() does, but a rank that has left matters to its own color only.
  std::unique_ptr<Group> split(int color, int key, const std::string& name);
  // The same ranks once more, for operations beside a program that computes, with so many streams to each rank on
  // another host; 0: as this group. Throws this group's failure, or PeerLostError where a rank has left it, also while
  // it waits for the others.
  std::unique_ptr<Group> twin(const std::string& name, int streams, std::string purpose = {},
                              std::vector<std::string> replaced = {});

  // Which algorithm an all_reduce of so many bytes takes in this group, the cost model's figures for all, chunks,
  // owners and connections, as text.
  std::string explain(std::size_t bytes) const;
  // The name of what all_reduce_batch() of so many bytes takes between hosts.
  std::string batch_algorithm(std::size_t bytes) const;

  // Fails what is in flight on all ranks with this reason and closes the group everywhere.
  void abort(const std::string& reason);
  // Leaves the group; what is in flight here fails. Idempotent. A non-empty reason is what others are told.
  void shutdown(const std::string& reason = "");
  // The failure that closed the group; null while it works.
  std::exception_ptr error() const;

 private:
  class SMDP_HIDDEN Impl;
  explicit Group(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Leaves every group of this process, e.g. at exit.
SMDP_API void shutdown_all(const std::string& reason);

}  // namespace smdp
