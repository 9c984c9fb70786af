#include "fusion/sharded_buffers.h"

#include <string>
#include <utility>

#include "collectives/chunks.h"
#include "fusion/gradient_codec.h"
#include "smdp/error.h"

namespace smdp {
namespace {

constexpr std::pair<const char*, ShardScope> kScopes[] = {
    {"none", ShardScope::kNone}, {"world", ShardScope::kWorld}, {"host", ShardScope::kHost}};

}  // namespace

ShardScope parse_shard_scope(const std::string& name) {
  std::string allowed;
  for (const auto& [text, scope] : kScopes) {
    if (name == text) return scope;
    allowed += (allowed.empty() ? "" : ", ") + std::string(text);
  }
  throw InvalidArgument("[smdp] the scope of shards is '" + name + "'; allowed: " + allowed + ".");
}

const char* name_of(ShardScope scope) {
  for (const auto& [text, known] : kScopes) {
    if (scope == known) return text;
  }
  return "none";
}

std::vector<ShardedBuffer> sharded_buffers(const Group& group, const std::vector<Gradient>& gradients,
                                           const FusionPlan& plan, const std::vector<FusionBuffer>& buffers,
                                           bool shards_span_hosts) {
  std::vector<ShardedBuffer> all;
  for (const FusionBuffer& buffer : buffers) {
    ShardedBuffer& one = all.emplace_back();
    one.dtype = buffer.plan.dtype;
    one.count = buffer.plan.count;
    one.is_alone = buffer.plan.is_alone;
    for (const std::size_t index : buffer.plan.members) {
      one.members.push_back({index, plan.place(index).offset, gradients[index].count});
    }
    const Batch::Item item{nullptr, nullptr,         one.count,    {one.dtype, ReduceOp::kSum}, buffer.codec.get(),
                           nullptr, Part::kToOwners, buffer.ends()};
    for (const Slice& slice :
         owned_slices(item, plan.exchange(), shards_span_hosts, group.hosts(),
                      static_cast<std::size_t>(group.host_index()), static_cast<std::size_t>(group.local_rank()))) {
      one.owned.push_back({slice.begin, slice.end});
    }
  }
  return all;
}

}  // namespace smdp
