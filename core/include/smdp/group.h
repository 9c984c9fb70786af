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

// How a group is made. Options that come from SMDP_* variables have the variable's name without the prefix.
struct GroupOptions {
  // Must be unique among the groups that share a store.
  std::string name = "world";
  // Rank in the world, used in messages if the group is a part of the world. -1: the group's ranks are those of the
  // world.
  int world_rank = -1;
  // Number of ranks in the world, used in traces. -1: the group is the world.
  int world_size = -1;
  // Deadline of operations that do not set their own. SMDP_TIMEOUT, default 30 min.
  std::chrono::milliseconds timeout{1'800'000};
  // Deadline for all ranks to join. SMDP_INIT_TIMEOUT, default 5 min.
  std::chrono::milliseconds init_timeout{300'000};
  // Shared secret that every connection must prove. Empty: rank 0 generates one and distributes it through the store.
  std::string secret;
  // Address (name or number) by which other hosts reach rank 0. Empty: that of the route to it, else the loopback.
  std::string master_addr;
  // Network interfaces to use, in NCCL's syntax ("eth", "=eth0,eth1", "^docker"). Several interfaces are several rails,
  // over which the data streams are spread. Empty: the interface of the route to the master.
  std::string socket_ifname;
  // Ranks share a host only if this value is equal as well. Empty: boot id and network namespace. Mostly for tests.
  std::string host_id;
  // auto, one_shot, two_shot, direct, ring, recursive_doubling or tree. Leave this alone unless you measure.
  // SMDP_ALGORITHM.
  std::string algorithm = "auto";
  // SMDP_DETERMINISTIC=strict: use only algorithms that add in rank order.
  bool strict = false;
  // Number of progress threads in the process, which all groups share. SMDP_THREADS.
  int threads = 1;
  // Number of TCP streams to each rank on another host; at least one per rail. More streams help if one connection
  // cannot fill the link. 0: one per rail; gradient reducers try more and use them if they are faster.
  int streams = 0;
  // An operation that waits this long is logged, with the ranks it waits for. 0: never. SMDP_STALL_TIME.
  std::chrono::milliseconds stall_time{60'000};
  // Directory for the trace of this process, see observability.h. Empty: no trace. SMDP_TRACE.
  std::string trace;
  // Size of a shared-memory chunk in bytes (rounded to 4 KiB). 0: 256 KiB; 2 MiB for gradients, or if there are more
  // ranks than cores.
  std::size_t chunk_bytes = 0;

  // Makes options from names without the SMDP_ prefix ("timeout" in seconds, "secret", ...). Ignores unknown names and
  // throws ConfigError for invalid values.
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

// Shapes of the blocks of a call, so that ranks detect shapes that differ even if the counts agree: one shape for all
// blocks, or one per block. Empty: not compared with the other ranks' shapes.
using Shapes = std::vector<std::vector<std::int64_t>>;

// Options of one call.
struct Call {
  std::optional<std::chrono::milliseconds> timeout;  // default: the group's
  bool async = false;                                // return before the operation is done
  std::shared_ptr<Arrival> arrival;                  // the input of a collective arrives later; null: it is complete
  bool is_counted = true;                            // whether operation_counts() includes the call
  std::function<std::string()> label;  // describes the data in messages; may be empty; any thread may call it
  std::string name;                    // same on all ranks, which is checked; may be empty
  // The call is matched with the other ranks' calls of the same name, in rank 0's order, so ranks may make calls of
  // this kind in different orders. Two calls with the same name must not be in flight at once. Each costs one small
  // extra message. Before a rank makes a call that is not by name, it must wait for its calls by name.
  bool by_name = false;
  // Polled by a blocking call; when it returns true, the call ends and the group is closed with ClosedError (Ctrl-C).
  // May be empty.
  std::function<bool()> interrupted;
};

// All ranks of a group must call the same collectives in the same order. A rank may call from any thread; the program
// must then keep the order. Buffers must live until the operation is done. Invalid arguments throw InvalidArgument
// before anything is sent; all other errors arrive through the operation. After a MismatchError that all ranks get in
// the same call, the group stays usable (docs/errors.md). After any other failure it is closed, and later calls throw
// the same error.
class SMDP_API Group {
 public:
  using Handle = std::shared_ptr<Operation>;  // null if the call was not async

  // Blocks until all `size` ranks have made a group with the same name and store.
  Group(std::shared_ptr<Store> store, int rank, int size, const GroupOptions& options);
  // For smdp's own bindings, which set additional options.
  Group(const GroupSetup& setup, std::shared_ptr<Store> store, int rank, int size);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Leaves the group, like shutdown(), unless find() has returned it to another owner.
  ~Group();

  // Returns the number of the group in this process, for find().
  std::uint64_t id() const;
  // Returns the group with this number, or null if it no longer exists.
  static std::shared_ptr<Group> find(std::uint64_t id);

  int rank() const;
  int size() const;
  // Returns the world rank of a rank of this group.
  int world_rank(int rank) const;
  const std::string& name() const;
  std::string tag() const;  // "[smdp] rank 3 of 8 (host b)", the prefix of messages
  int local_rank() const;   // index among the ranks of this host
  int local_size() const;
  int host_index() const;
  const std::vector<std::vector<int>>& hosts() const;
  const std::vector<std::string>& host_names() const;  // by rank
  // Returns how many streams to each rank on another host are worth comparing with one stream by measurement. 0: there
  // is nothing to compare.
  int streams_to_try() const;

  // Buffers of one call must not overlap, except that this rank's input may be the place where its part of the result
  // goes. Several outputs may be the same memory if at most one result is needed; it is unspecified which one the
  // memory then holds. `factor` multiplies this rank's input if op is kPremulSum.
  Handle all_reduce(const void* in, void* out, std::span<const std::int64_t> shape, DType dtype, ReduceOp op,
                    double factor = 1.0, const Call& call = {});
  // All ranks must pass the same shape, dtype and number of sparse dimensions. op: kSum, kAvg or kPremulSum.
  Handle all_reduce_sparse(std::shared_ptr<SparseSum> sum, ReduceOp op, double factor = 1.0, const Call& call = {});
  // Sums tensors while they are being filled, for gradient_reducer.h. All ranks must pass the same counts and dtypes.
  Handle all_reduce_batch(std::shared_ptr<Batch> batch, const Call& call);
  // Called after Batch::fill().
  void wake();
  // `out` is used only on the root.
  Handle reduce(const void* in, void* out, std::span<const std::int64_t> shape, DType dtype, ReduceOp op, int root,
                double factor = 1.0, const Call& call = {});
  // The root also waits until the ranks of its host, and one rank of each host below it in the tree, have made the
  // call, so that it learns of a mismatch.
  Handle broadcast(void* data, std::span<const std::int64_t> shape, DType dtype, int root, const Call& call = {});
  // `out` has one buffer per rank. Counts may differ between ranks, but all ranks must pass the same list of counts. A
  // single shape applies to each block.
  Handle all_gather(ConstBuffer in, std::vector<Buffer> out, DType dtype, const Call& call = {},
                    const Shapes& shapes = {});
  // `in` has one buffer per receiver, with the same counts on all ranks. A single shape is that of all blocks together.
  Handle reduce_scatter(std::vector<ConstBuffer> in, Buffer out, DType dtype, ReduceOp op, double factor = 1.0,
                        const Call& call = {}, const Shapes& shapes = {});
  // in[j] goes to rank j; out[j] comes from rank j. A single shape is that of all blocks together, which are then
  // equal.
  Handle all_to_all(std::vector<ConstBuffer> in, std::vector<Buffer> out, DType dtype, const Call& call = {},
                    const Shapes& shapes = {});
  // `out` is empty except on the root. The shape is that of `in`; its first extent may differ between ranks.
  Handle gather(ConstBuffer in, std::vector<Buffer> out, DType dtype, int root, const Call& call = {},
                const Shapes& shapes = {});
  // `in` is empty except on the root. The shape is that of `out`; its first extent may differ between ranks.
  Handle scatter(std::vector<ConstBuffer> in, Buffer out, DType dtype, int root, const Call& call = {},
                 const Shapes& shapes = {});
  Handle barrier(const Call& call = {});
  // Point to point, matched by (source, tag) in order, independent of collectives. source -1: any rank.
  Handle send(ConstBuffer data, DType dtype, int destination, std::int64_t tag, const Call& call = {});
  Handle recv(Buffer data, DType dtype, int source, std::int64_t tag, const Call& call = {});
  // Like send(), for at least one element, but the destination need not receive it. The operation waits without a
  // deadline for recv() or refuse() at the destination, and ends without an error when the destination leaves. The
  // memory is read until the operation ends.
  Handle offer(ConstBuffer data, DType dtype, int destination, std::int64_t tag);
  // Declines the next offer of `source` with this tag. The offer must not be received as well; ordinary sends are not
  // affected.
  void refuse(int source, std::int64_t tag);
  // Sends all offered data, which the destinations then keep, so that this rank can leave once the handles have ended.
  void push_offers();

  // Returns a check for a separate group that these ranks form. The check yields PeerLostError once one of them has
  // died (even after this group was closed) or has left.
  Obstacle watch(std::vector<int> ranks) const;

  // Collective. Ranks with the same color (>= 0) form a group, ordered by key, then by rank. Returns null for a
  // negative color. Throws as twin() does, except that a rank that has left affects only its own color.
  std::unique_ptr<Group> split(int color, int key, const std::string& name);
  // Makes another group of the same ranks, for operations that run beside the program's own, with this many streams to
  // each rank on another host (0: as many as this group has). Throws this group's failure, or PeerLostError if a rank
  // has left it before or during the wait for the other ranks.
  std::unique_ptr<Group> twin(const std::string& name, int streams, std::string purpose = {},
                              std::vector<std::string> replaced = {});

  // Returns a text that names the algorithm for an all_reduce of this many bytes in this group, the cost model's times
  // for all algorithms, chunks, owners and connections.
  std::string explain(std::size_t bytes) const;
  // Returns the name of the algorithm that all_reduce_batch() of this many bytes uses between hosts.
  std::string batch_algorithm(std::size_t bytes) const;

  // Fails all operations in flight on all ranks with this reason, and closes the group on all ranks.
  void abort(const std::string& reason);
  // Leaves the group; operations in flight on this rank fail. Idempotent. A non-empty reason is sent to the other
  // ranks.
  void shutdown(const std::string& reason = "");
  // Returns the failure that closed the group, or null while it works.
  std::exception_ptr error() const;

 private:
  class SMDP_HIDDEN Impl;
  explicit Group(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Leaves every group of this process, e.g. at exit.
SMDP_API void shutdown_all(const std::string& reason);

}  // namespace smdp
