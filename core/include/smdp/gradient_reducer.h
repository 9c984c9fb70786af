// Averages the gradients of one model over a group while the backward pass runs, in balanced fusion buffers. Any
// framework can drive it.
//
// A gradient is identified by its index in a list that is the same on all ranks. Each gradient has a fixed place in a
// fusion buffer of its dtype. A buffer is all-reduced as soon as all its places are filled, and buffers go out in
// order. In the first step the places follow the reverse of the list, because backward produces gradients in about that
// order. From the second step on they follow the order that rank 0 saw in the first. Every buffer is cut by bytes into
// equal shards, one per owner (core/README.md). If the caller waits for single gradients, the buffers that are still
// queued when backward ends go out in list order, so that the front layers' gradients come first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smdp/dtype.h"
#include "smdp/export.h"
#include "smdp/group.h"
#include "smdp/shards.h"
#include "smdp/sparse_sum.h"

namespace smdp {

// The type in which float32 gradients travel between hosts. Nothing is compressed inside a host, and gradients of other
// dtypes travel unchanged.
enum class Compression : std::uint8_t { kNone = 0, kFloat16 = 1, kBfloat16 = 2, kInt8 = 3, kTopK = 4 };

// Parses "none", "fp16", "bf16", "int8" or "topk". Throws InvalidArgument, which lists the valid names.
SMDP_API Compression parse_compression(const std::string& name);
SMDP_API const char* name_of(Compression compression);

struct Gradient {
  std::string name;  // used in messages
  std::size_t count = 0;
  DType dtype = DType::kFloat32;  // must be a real or complex floating-point type
  std::string shape = {};         // as text, compared between ranks; empty: "[count]"
  bool is_whole = false;          // with `shards`: one rank owns all of it
};

struct GradientReducerOptions {
  Compression compression = Compression::kNone;
  // Largest size of a fusion buffer in bytes; the cost model may choose a smaller one. A gradient that is larger than
  // this gets its own buffer.
  std::size_t buffer_bytes = std::size_t{25} << 20;
  // Factor that multiplies every gradient before the sum. 0: 1 / (size of the group), which gives the mean.
  double factor = 0;
  // For Compression::kTopK: the fraction of the values that is sent, and the momentum used for momentum correction,
  // which is the one that the optimizer would have used.
  double topk_ratio = 0.01;
  double topk_momentum = 0;
  // Whether names must be equal on all ranks. TensorFlow's names depend on what else the process has built.
  bool compares_names = true;
  // What the reducer is for, as messages name it. Empty: messages list the gradients' names.
  std::string purpose = {};
  // Who gets the means. Unless it is kNone, places follow the reverse of the list in all steps, because what an
  // optimizer keeps for a shard must not move; gradients must be in host memory; and of read() and then() nothing is
  // allowed.
  ShardScope shards = ShardScope::kNone;
  // Names of groups of earlier reducers for the same parameters, which this one replaces. This rank calls no operation
  // of those groups until all ranks have joined the new one.
  std::vector<std::string> replaced = {};
};

// A stream of a CUDA device: a CUstream or cudaStream_t. Null is the device's default stream.
struct CudaStream {
  int device = 0;
  void* stream = nullptr;
};

// A step consists of ready() for each gradient that backward produced, finish(), and wait(). Thread safety: ready() may
// be called from several threads, and sum_into(), has_means() and await_means() from one of them; all other functions
// from one thread, after the last ready(). abort() may be called at any time.
class SMDP_API GradientReducer {
 public:
  // Collective. Creates its own connections (Group::twin), so its operations and other collectives of `group` may
  // interleave differently on every rank. Throws MismatchError on all ranks if the lists differ, naming the first
  // difference, and InvalidArgument for a gradient that cannot be averaged.
  GradientReducer(Group& group, std::vector<Gradient> gradients, const GradientReducerOptions& options);
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  ~GradientReducer();

  // Hands over gradient `index`, which is stored at `data`. Its mean is there after wait(index) or wait(); until then
  // the memory belongs to the reducer, which may change it at once. Small gradients are copied to a fusion buffer;
  // large ones are summed in place. Throws if the gradient was already ready in this step. Pass is_used = false for a
  // gradient that is left over from an earlier step: it contributes to the mean, but does not mark the gradient as used
  // unless compression keeps something of it.
  void ready(std::size_t index, void* data, bool is_used = true);
  // The same for memory of CUDA device `device`. The gradient is complete after `event`, a recorded CUevent or
  // cudaEvent_t; null: it is complete now. The gradients of a fusion buffer are gathered in device memory of the same
  // size. Once all have arrived, adjacent ones are copied to the host together, in parallel with the device's
  // computation. Means are copied back one by one. Throws InvalidArgument if the device does not exist, and Error if
  // the CUDA driver is missing or a driver call fails. After a failed driver call, here or elsewhere, the group is
  // closed and the other ranks get the reason.
  void ready(std::size_t index, void* data, int device, void* event, bool is_used = true);
  // Ends the backward pass. Gradients that were not ready count as zero.
  void finish();
  // Blocks, after finish(), until the mean of this gradient, or of all gradients, is written back. Throws the group's
  // errors. `interrupted` is polled; when it returns true, the wait ends with ClosedError and the group is closed
  // (Ctrl-C). Every step ends with wait() for all.
  void wait(std::size_t index, const std::function<bool()>& interrupted = {});
  void wait(const std::function<bool()>& interrupted = {});
  // Like wait(), but does not block for copies back to devices: `stream`, of any device, waits for them instead.
  void wait(std::size_t index, const CudaStream& stream, const std::function<bool()>& interrupted = {});
  void wait(const CudaStream& stream, const std::function<bool()>& interrupted = {});
  // Collective, called between steps: sets each flag (0 or 1) to 1 if it is 1 on any rank. `interrupted`: see wait().
  void or_over_ranks(std::uint8_t* flags, std::size_t count, const std::function<bool()>& interrupted = {});
  // Averages a gradient of which every rank has only some rows (or multiplies the sum by the factor). Called after
  // finish() and before wait() for all, in the same order on all ranks. It travels separately from the fusion buffers;
  // its count in the list is 0.
  Group::Handle all_reduce_sparse(std::size_t index, std::shared_ptr<SparseSum> sum);
  // Alternative to both wait() functions, called after finish(). `part` runs on the completion thread whenever the
  // means of a fusion buffer are written back, copies to devices included, and gets their indices. `end` runs once the
  // step has ended. After a failure only `end` runs and gets the error. The reducer must outlive both.
  void then(std::function<void(const std::vector<std::size_t>&)> part, std::function<void(std::exception_ptr)> end);
  // Returns, after wait(), whether any rank used the gradient. If only other ranks did, read() gives its mean.
  bool is_used(std::size_t index) const;
  // Writes the mean of this step to host memory. A large gradient that this rank contributed is read from its own
  // memory, which must still be valid. Throws before the first step.
  void read(std::size_t index, void* out) const;

  // For reducers whose `shards` are not kNone: the fusion buffers, which stay the same in all steps.
  const std::vector<ShardedBuffer>& sharded_buffers() const;
  // Sends the means of the coming step that this rank owns of a gradient, one range after the other, to `own` instead
  // of the gradient's memory, which may be freed once has_means() is true. Called before ready(); without ready() it
  // has no effect. Only for a gradient that is alone in its buffer, and not with compression kInt8 or kTopK. `own` must
  // live as long as the gradient's memory must.
  void sum_into(std::size_t index, void* own);
  // Returns, after has_means() or wait(), the memory of a buffer, in which the means of the ranges that this rank owns
  // are valid until the next step. That of a buffer that is alone is the gradient's own, or the reducer's where the
  // gradient was absent.
  const void* means(std::size_t number) const;
  // Returns whether this rank has the means that it owns of a buffer. They may be read then, before wait() has ended
  // the step. Compression kInt8 or kTopK keeps values of a step until wait(), so there are no means before it.
  bool has_means(std::size_t number) const;
  // Waits, in the middle of a step, until this rank has the means that it owns of a buffer. A gradient that is alone in
  // it may be freed then. Returns false at once if the buffer is not on its way yet, and with kInt8 or kTopK.
  bool await_means(std::size_t number, const std::function<bool()>& interrupted = {});
  // Collective, between finish(), or wait() with kInt8 or kTopK, and the next step. data: by buffer, memory of `count`
  // elements in the buffer's layout, of which each rank has what it owns, and all ranks get everything. It must live
  // until wait() of the result. Nothing travels before all means are there. is_once_per_host, the same on all ranks:
  // the ranks of a host pass the same memory, see host_memory.h. Nothing is copied inside a host then, and other hosts'
  // parts are written once. A rank may write what it owns after HostMemory::await_host(), and may read a buffer again
  // after wait() for it.
  std::unique_ptr<ParameterGather> gather(const std::vector<void*>& data, bool is_once_per_host = false);

  // Closes the reducer on all ranks, whatever it is doing. Once this returns, no gradient's memory is accessed any
  // more.
  void abort(const std::string& reason);

  // Rescales what compression keeps from earlier steps, because the loss scale was multiplied by `factor`, a float32
  // above 0.
  void rescale(double factor);

  // What compression keeps of a gradient between steps, in parts of as many float32 values as the gradient has. Part 0
  // is the residual that this rank has not sent yet; part 1 is the momentum of kTopK; part 2 is a mean that was
  // computed in a step in which no rank used the gradient, and is the same on all ranks.
  static constexpr std::size_t kKeptParts = 3;
  // Copies a part to `out`. Returns false and writes nothing if the part is all zeros.
  bool copy_kept(std::size_t index, std::size_t part, float* out) const;
  // Restores a part that copy_kept() wrote, so that training continues as if it had not stopped. Requires the same
  // buffers and hosts. Parts that this reducer does not keep are ignored.
  void set_kept(std::size_t index, std::size_t part, const float* values);

  struct Stats {
    std::uint64_t steps = 0;
    std::uint64_t bytes = 0;     // of gradients, summed over steps
    double exposed_seconds = 0;  // time that wait() blocked, summed over steps
    double last_exposed_seconds = 0;
  };
  Stats stats() const;
  struct Speed {
    double latency = 0;    // seconds of the smallest all_reduce
    double bandwidth = 0;  // bytes per second that an all_reduce sums over all ranks
    double reduction = 0;  // bytes per second that a rank reads when it adds
  };
  // Returns what was measured before the first step, the same on all ranks.
  Speed speed() const;
  // Returns a text that lists the buffers with their sizes and the reason for each.
  std::string explain() const;
  // Returns the name of the group that the reducer created.
  const std::string& group_name() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The same compression for a framework that makes its own fusion buffers. Not thread-safe.
class SMDP_API GradientCompressor {
 public:
  // options.buffer_bytes is ignored. Throws InvalidArgument.
  explicit GradientCompressor(const GradientReducerOptions& options);
  GradientCompressor(const GradientCompressor&) = delete;
  GradientCompressor& operator=(const GradientCompressor&) = delete;
  ~GradientCompressor();

  // Collective, called before the first all_reduce(). Throws MismatchError on all ranks if their options differ.
  void check_same(Group& group) const;
  // Collective. Replaces a buffer with its mean over the group. `key` identifies the framework's buffer and is the same
  // in every step; what compression keeps for a key is lost when its count changes. Only float32 is compressed. The
  // memory and this object must live until the operation is done. Throws InvalidArgument unless the dtype is a
  // floating-point or complex type.
  Group::Handle all_reduce(Group& group, std::size_t key, void* data, std::size_t count, DType dtype, const Call& call);
  // Called after all operations of a step. counts = false: a result was not finite, so what the step would have kept is
  // discarded.
  void end_step(bool counts);
  // See GradientReducer::rescale().
  void rescale(double factor);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smdp
