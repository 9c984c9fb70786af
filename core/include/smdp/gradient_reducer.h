// Sums the gradients of one model over a group while backward goes on: balanced fusion buffers that any framework can
// drive.
//
// Gradients are known by their index in a list that is the same on all ranks. Each has a fixed place in a fusion buffer
// of its dtype; a buffer is all-reduced as soon as all its places are filled, in the order of the buffers. The first
// step uses the reverse of the list, as backward produces gradients; from the second on, places follow the order that
// rank 0 saw in the first. Every buffer is cut by bytes into equal shards, one per owner (core/README.md). Where
// someone waits for single gradients, buffers that wait when backward ends go in the order of the list, front layers
// first.
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
#include "smdp/sparse_sum.h"

namespace smdp {

// What float32 gradients travel as between hosts. Inside a host nothing is compressed, and gradients of other dtypes
// travel as they are.
enum class Compression : std::uint8_t { kNone = 0, kFloat16 = 1, kBfloat16 = 2, kInt8 = 3, kTopK = 4 };

// "none", "fp16", "bf16", "int8", "topk"; throws InvalidArgument, which lists them.
SMDP_API Compression parse_compression(const std::string& name);
SMDP_API const char* name_of(Compression compression);

struct Gradient {
  std::string name;  // for messages
  std::size_t count = 0;
  DType dtype = DType::kFloat32;  // a real or complex float
  std::string shape = {};         // as text; compared between ranks. Empty: "[count]"
};

struct GradientReducerOptions {
  Compression compression = Compression::kNone;
  // Most bytes of a fusion buffer; the cost model may choose less. A larger gradient has a buffer of its own.
  std::size_t buffer_bytes = std::size_t{25} << 20;
  // Multiplies every gradient before the sum. 0: 1 / (size of the group), which gives the mean.
  double factor = 0;
  // Part of a piece that Compression::kTopK sends, and its momentum correction: the momentum that the optimizer would
  // have used.
  double topk_ratio = 0.01;
  double topk_momentum = 0;
  // Whether names must be equal on all ranks. TensorFlow's depend on what else a process has built.
  bool compares_names = true;
  // What the reducer is for, as messages say it. Empty: the gradients' names.
  std::string purpose = {};
  // Groups of other reducers of these parameters, whose place this one takes: this rank calls no operation of those
  // before all ranks have come.
  std::vector<std::string> replaced = {};
};

// A stream of a CUDA device: a CUstream or cudaStream_t; null is its default one.
struct CudaStream {
  int device = 0;
  void* stream = nullptr;
};

// A step is: ready() for each gradient that backward produced, finish(), then wait(). Thread safety: ready() may be
// called from several threads; everything else by one, after the last ready().
class SMDP_API GradientReducer {
 public:
  // Collective. Makes connections of its own (Group::split), so other collectives of `group` may come in between, in
  // another order on every rank. Throws MismatchError on all ranks if the lists differ, with the first difference,
  // and InvalidArgument for a gradient that cannot be averaged.
  GradientReducer(Group& group, std::vector<Gradient> gradients, const GradientReducerOptions& options);
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  ~GradientReducer();

  // Gradient `index` lies at `data`, where its mean will be after wait(index) or wait(); until then the memory belongs
  // to the reducer, which may change it at once. Small gradients are copied to a fusion buffer, large ones are summed
  // where they lie. Throws if it was ready in this step already. is_used: false for one that is left over from an
  // earlier step: it belongs to the mean, but is no reason to say that this gradient is used, unless compression keeps
  // something of it.
  void ready(std::size_t index, void* data, bool is_used = true);
  // The same for memory of CUDA device `device`, which is complete after `event`, a CUevent or cudaEvent_t that has
  // been recorded; null: now. Those of a fusion buffer are gathered in memory of the device, as much as they take; once
  // all are there, neighbours cross to the host in one copy, beside what the device computes. Means come back one by
  // one. Throws InvalidArgument for a device that is not there, and Error without CUDA's driver, or where it refuses:
  // after a refusal, here or in another call, the group is closed, and the other ranks hear why.
  void ready(std::size_t index, void* data, int device, void* event, bool is_used = true);
  // Backward is over: gradients that did not come count as zero.
  void finish();
  // After finish(): blocks until this gradient's mean, or all of them, have been written back. Throws the group's
  // errors. interrupted: asked now and then; true ends the wait with ClosedError and closes the group (Ctrl-C). A step
  // ends with wait() for all.
  void wait(std::size_t index, const std::function<bool()>& interrupted = {});
  void wait(const std::function<bool()>& interrupted = {});
  // Do not block for copies back to devices, but let `stream`, of any device, wait for them.
  void wait(std::size_t index, const CudaStream& stream, const std::function<bool()>& interrupted = {});
  void wait(const CudaStream& stream, const std::function<bool()>& interrupted = {});
  // Collective, between steps: sets each flag, which is 0 or 1, to 1 if any rank has 1. interrupted: as in wait().
  void or_over_ranks(std::uint8_t* flags, std::size_t count, const std::function<bool()>& interrupted = {});
  // After finish() and before wait() for all, in the same order on all ranks: the mean (or the sum times the factor) of
  // a gradient of which every rank has only some rows. It travels beside the fusion buffers; in the list its count is
  // 0.
  Group::Handle all_reduce_sparse(std::size_t index, std::shared_ptr<SparseSum> sum);
  // Instead of both, after finish(): `part` runs on the completion thread as each fusion buffer's means have been
  // written back, with their indices, those of devices waited for; then `end`, once the step has ended. After a failure
  // only `end` runs, with it.
  // The reducer must live until then.
  void then(std::function<void(const std::vector<std::size_t>&)> part, std::function<void(std::exception_ptr)> end);
  // After wait(): some rank had it. A gradient that was absent here and is used elsewhere is read by read().
  bool is_used(std::size_t index) const;
  // Writes the mean of this step, to memory of the host. A large one that this rank had is read from where it lies, so
  // that must still be there. Throws before the first step.
  void read(std::size_t index, void* out) const;

  // Closes it on all ranks, whatever it is doing. Once this returns no gradient's memory is touched any more.
  void abort(const std::string& reason);

  // The loss scale has been multiplied by this, a float32 above 0: what compression keeps from earlier steps must be,
  // too.
  void rescale(double factor);

  // What compression keeps of a gradient for later steps, between steps, in parts of as many float32 as it has: 0 is
  // what this rank has not sent yet, 1 the momentum of kTopK, 2 a mean that nobody has taken, the same on all ranks.
  static constexpr std::size_t kKeptParts = 3;
  // False, and nothing is written: all of it is zero.
  bool copy_kept(std::size_t index, std::size_t part, float* out) const;
  // Steps go on as after those that left it, with the same buffers and hosts. What is not kept here is passed over.
  void set_kept(std::size_t index, std::size_t part, const float* values);

  struct Stats {
    std::uint64_t steps = 0;
    std::uint64_t bytes = 0;     // of gradients, summed over steps
    double exposed_seconds = 0;  // that wait() blocked, summed over steps
    double last_exposed_seconds = 0;
  };
  Stats stats() const;
  // Buffers, their sizes and why, as text.
  std::string explain() const;
  // Name of the group that it has made.
  const std::string& group_name() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The same wire types for a framework that makes its own fusion buffers. Not thread-safe.
class SMDP_API GradientCompressor {
 public:
  // buffer_bytes is not used. Throws InvalidArgument.
  explicit GradientCompressor(const GradientReducerOptions& options);
  GradientCompressor(const GradientCompressor&) = delete;
  GradientCompressor& operator=(const GradientCompressor&) = delete;
  ~GradientCompressor();

  // Collective, before the first all_reduce: throws MismatchError on all ranks if their options differ.
  void check_same(Group& group) const;
  // Collective: replaces a buffer by its mean over the group. key: which of the framework's buffers it is, the same in
  // every step; what compression keeps of a key is lost when its count changes. Only float32 is compressed. The memory,
  // and this object, must live until the operation is done. Throws InvalidArgument for what is no float or
  // complex number.
  Group::Handle all_reduce(Group& group, std::size_t key, void* data, std::size_t count, DType dtype, const Call& call);
  // After all of a step's operations. False: a result was not finite, so forget what the step would leave behind.
  void end_step(bool counts);
  // As GradientReducer::rescale().
  void rescale(double factor);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smdp
