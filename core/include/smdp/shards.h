// Gradients and parameters of which every rank owns a shard, as an optimizer needs them whose state exists once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smdp/dtype.h"
#include "smdp/export.h"

namespace smdp {

// Who gets the means of a step. A shard is an equal part, by bytes, of every fusion buffer. Gradients that must not be
// cut (Gradient::is_whole) have buffers of their own, and are divided between the owners as equally as they can be.
//   kNone: every rank gets all of them.
//   kWorld: every rank gets those of its own shard.
//   kHost: every rank gets those of its shard among the ranks of its host. All hosts have the same shards.
// Where hosts have different numbers of ranks, the surplus ranks of a host own nothing.
enum class ShardScope : std::uint8_t { kNone = 0, kWorld = 1, kHost = 2 };

// Parses "none", "world" or "host". Throws InvalidArgument, which lists the valid names.
SMDP_API ShardScope parse_shard_scope(const std::string& name);
SMDP_API const char* name_of(ShardScope scope);

// A fusion buffer of a reducer whose `shards` are not kNone.
struct ShardedBuffer {
  struct Member {
    std::size_t index;   // of the gradient in the list
    std::size_t offset;  // elements
    std::size_t count;   // elements
  };
  struct Range {
    std::size_t begin;  // elements
    std::size_t end;
  };
  DType dtype = DType::kFloat32;
  std::size_t count = 0;  // elements, gaps between members included
  bool is_alone = false;  // one large gradient, summed in its own memory
  std::vector<Member> members;
  std::vector<Range> owned;  // by this rank, in ascending order
};

// Sends the parameters that every rank has updated in its own shards to all ranks; see GradientReducer::gather().
// The reducer must outlive this object, which may be destroyed only after wait() has ended, for the memory is used
// until then. Thread safety: one thread at a time.
class SMDP_API ParameterGather {
 public:
  class Impl;
  explicit ParameterGather(std::unique_ptr<Impl> impl);
  ParameterGather(const ParameterGather&) = delete;
  ParameterGather& operator=(const ParameterGather&) = delete;
  ~ParameterGather();

  // This rank has updated what it owns of buffer `number`, which may travel. Buffers travel in reverse order, so that
  // the parameters that the next forward needs first arrive first.
  void ready(std::size_t number);
  // Blocks until all of the buffer, or of all buffers, is there. Throws the group's errors. `interrupted`: see
  // GradientReducer::wait().
  void wait(std::size_t number, const std::function<bool()>& interrupted = {});
  void wait(const std::function<bool()>& interrupted = {});
  bool is_there(std::size_t number) const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace smdp
