// Calls of a group that all ranks make. Each checks its arguments and then becomes a coroutine that the engine runs.
#include <algorithm>
#include <array>
#include <utility>

#include "collectives/engine/engine.h"
#include "collectives/group_arguments.h"
#include "collectives/group_impl.h"
#include "collectives/hierarchical.h"
#include "collectives/local.h"
#include "collectives/overlap.h"
#include "collectives/routes.h"
#include "collectives/sparse_all_reduce.h"
#include "smdp/error.h"

namespace smdp {
namespace {

// The name under which messages list a batch: its first item is a fusion buffer.
OpKind kind_of(const Batch& batch) {
  switch (batch.items().front().part) {
    case Part::kToOwners:
      return OpKind::kReduceScatter;
    case Part::kFromOwners:
      return OpKind::kAllGather;
    default:
      return OpKind::kAllReduce;
  }
}

}  // namespace

Group::Handle Group::all_reduce(const void* in, void* out, std::span<const std::int64_t> shape, DType dtype,
                                ReduceOp op, double factor, const Call& call) {
  const Members& members = impl_->members();
  check_reduction(members, "all_reduce", dtype, op);
  Fingerprint print = fingerprint(OpKind::kAllReduce, dtype, op);
  print.set_shape(shape);
  const std::size_t count = print.count;
  check_buffer("all_reduce", in, count);
  check_buffer("all_reduce", out, count);
  const std::size_t size = count * size_of(dtype);
  check_apart(members, "all_reduce", {bytes(in), size}, {bytes(out), size});
  const Reduction reduction = reduction_for(dtype, op, members.size);
  const Planner& planner = impl_->engine->planner();
  return impl_->engine->collective(
      print, size,
      [=, &planner](Context& context) {
        return routed_all_reduce(context, bytes(in), bytes(out), count, reduction, factor, planner);
      },
      call);
}

Group::Handle Group::all_reduce_sparse(std::shared_ptr<SparseSum> sum, ReduceOp op, double factor, const Call& call) {
  const Members& members = impl_->members();
  SparseParts& parts = sum->parts();
  const SparseForm& form = parts.form;
  if (op != ReduceOp::kSum && op != ReduceOp::kAvg && op != ReduceOp::kPremulSum) {
    throw InvalidArgument(members.prefix() + "all_reduce of a sparse tensor does not support " + name_of(op) +
                          ", because rows that a rank does not have count as zero. Use SUM or AVG, or make the tensor "
                          "dense.");
  }
  check_reduction(members, "all_reduce", form.dtype, op);
  if (parts.was_given) {
    throw InvalidArgument(members.prefix() +
                          "all_reduce of a sparse tensor got a SparseSum that an earlier all_reduce has used. Make a "
                          "new SparseSum for each all_reduce.");
  }
  parts.was_given = true;
  if (op == ReduceOp::kPremulSum) parts.scale_own(factor);
  Fingerprint print = fingerprint(OpKind::kAllReduceSparse, form.dtype, op, static_cast<int>(form.sparse_dims));
  print.set_shape(form.shape);
  const Reduction reduction = reduction_for(form.dtype, op, members.size);
  const Planner& planner = impl_->engine->planner();
  return impl_->engine->collective(
      print, parts.own_bytes(),
      [sum = std::move(sum), reduction, &planner](Context& context) {
        return sparse_all_reduce(context, sum->parts(), reduction, planner);
      },
      call);
}

Group::Handle Group::all_reduce_batch(std::shared_ptr<Batch> batch, const Call& call) {
  std::int64_t elements = 0;
  std::size_t bytes_in_all = 0;
  for (const Batch::Item& item : batch->items()) {
    elements += static_cast<std::int64_t>(item.count);
    bytes_in_all += item.bytes();
  }
  Fingerprint print = fingerprint(kind_of(*batch), batch->items().front().reduction.dtype);
  print.set_shape(std::array<std::int64_t, 1>{elements});
  if (batch->is_once_per_host()) print.root = 0;
  const Planner& planner = impl_->engine->planner();
  return impl_->engine->collective(
      print, bytes_in_all,
      [batch, &planner](Context& context) { return routed_all_reduce_batch(context, *batch, planner); }, call,
      [batch] { return !batch->is_filled(batch->items().size() - 1); });
}

void Group::wake() { impl_->engine->wake(); }

Group::Handle Group::reduce(const void* in, void* out, std::span<const std::int64_t> shape, DType dtype, ReduceOp op,
                            int root, double factor, const Call& call) {
  const Members& members = impl_->members();
  check_rank(members, "root", root);
  check_reduction(members, "reduce", dtype, op);
  Fingerprint print = fingerprint(OpKind::kReduce, dtype, op, root);
  print.set_shape(shape);
  const std::size_t count = print.count;
  check_buffer("reduce", in, count);
  std::byte* target = members.rank == root ? bytes(out) : nullptr;
  const std::size_t size = count * size_of(dtype);
  if (members.rank == root) {
    check_buffer("reduce", out, count);
    check_apart(members, "reduce", {bytes(in), size}, {target, size});
  }
  const Reduction reduction = reduction_for(dtype, op, members.size);
  return impl_->engine->collective(
      print, size,
      [=](Context& context) { return routed_reduce(context, bytes(in), target, count, reduction, root, factor); },
      call);
}

Group::Handle Group::broadcast(void* data, std::span<const std::int64_t> shape, DType dtype, int root,
                               const Call& call) {
  check_rank(impl_->members(), "root", root);
  Fingerprint print = fingerprint(OpKind::kBroadcast, dtype, ReduceOp::kSum, root);
  print.set_shape(shape);
  check_buffer("broadcast", data, print.count);
  const Bytes all{bytes(data), print.count * size_of(dtype)};
  return impl_->engine->collective(
      print, all.size, [=](Context& context) { return routed_broadcast(context, all, root); }, call);
}

Group::Handle Group::all_gather(ConstBuffer in, std::vector<Buffer> out, DType dtype, const Call& call,
                                const Shapes& shapes) {
  const Members& members = impl_->members();
  check_list(members, "all_gather's output", out.size());
  check_count(members, "all_gather's input", in.count, out[static_cast<std::size_t>(members.rank)].count);
  check_buffer("all_gather", in.data, in.count);
  for (const Buffer& buffer : out) check_buffer("all_gather", buffer.data, buffer.count);
  check_apart(members, "all_gather", {view(in, dtype)}, const_views(out, dtype),
              as_const(view(out[static_cast<std::size_t>(members.rank)], dtype)));
  Fingerprint print = fingerprint(OpKind::kAllGather, dtype);
  print.set_counts(counts_of(out));
  add_shapes(print, shapes, false);
  return impl_->all_gather(print, in, out, call);
}

Group::Handle Group::reduce_scatter(std::vector<ConstBuffer> in, Buffer out, DType dtype, ReduceOp op, double factor,
                                    const Call& call, const Shapes& shapes) {
  const Members& members = impl_->members();
  check_reduction(members, "reduce_scatter", dtype, op);
  check_list(members, "reduce_scatter's input", in.size());
  check_count(members, "reduce_scatter's output", out.count, in[static_cast<std::size_t>(members.rank)].count);
  check_buffer("reduce_scatter", out.data, out.count);
  for (const ConstBuffer& buffer : in) check_buffer("reduce_scatter", buffer.data, buffer.count);
  check_apart(members, "reduce_scatter", views(in, dtype), {as_const(view(out, dtype))}, as_const(view(out, dtype)));
  Fingerprint print = fingerprint(OpKind::kReduceScatter, dtype, op);
  print.set_counts(counts_of(in));
  add_shapes(print, shapes, true);
  const Reduction reduction = reduction_for(dtype, op, members.size);
  return impl_->engine->collective(
      print, total(in, dtype),
      [blocks = views(in, dtype), target = bytes(out.data), reduction, factor](Context& context) {
        return routed_reduce_scatter(context, blocks, target, reduction, factor);
      },
      call);
}

Group::Handle Group::all_to_all(std::vector<ConstBuffer> in, std::vector<Buffer> out, DType dtype, const Call& call,
                                const Shapes& shapes) {
  const Members& members = impl_->members();
  const auto me = static_cast<std::size_t>(members.rank);
  check_list(members, "all_to_all's input", in.size());
  check_list(members, "all_to_all's output", out.size());
  check_count(members, "all_to_all's output for this rank", out[me].count, in[me].count);
  for (const ConstBuffer& buffer : in) check_buffer("all_to_all", buffer.data, buffer.count);
  for (const Buffer& buffer : out) check_buffer("all_to_all", buffer.data, buffer.count);
  check_apart(members, "all_to_all", views(in, dtype), const_views(out, dtype), as_const(view(out[me], dtype)));
  Fingerprint print = fingerprint(OpKind::kAllToAll, dtype);
  add_shapes(print, shapes, true);
  return impl_->engine->collective(
      print, total(in, dtype),
      [outgoing = views(in, dtype), incoming = views(out, dtype)](Context& context) {
        return pairwise(context, outgoing, incoming);
      },
      call);
}

Group::Handle Group::gather(ConstBuffer in, std::vector<Buffer> out, DType dtype, int root, const Call& call,
                            const Shapes& shapes) {
  const Members& members = impl_->members();
  check_rank(members, "root", root);
  check_buffer("gather", in.data, in.count);
  if (members.rank == root) {
    check_list(members, "gather's output", out.size());
    check_count(members, "gather's output for this rank", out[static_cast<std::size_t>(root)].count, in.count);
    for (const Buffer& buffer : out) check_buffer("gather", buffer.data, buffer.count);
    check_apart(members, "gather", {view(in, dtype)}, const_views(out, dtype),
                as_const(view(out[static_cast<std::size_t>(root)], dtype)));
  } else {
    out.clear();
  }
  std::vector<ConstBytes> outgoing(static_cast<std::size_t>(members.size));
  outgoing[static_cast<std::size_t>(root)] = view(in, dtype);
  std::vector<Bytes> incoming = views(out, dtype);
  incoming.resize(static_cast<std::size_t>(members.size));
  Fingerprint print = fingerprint(OpKind::kGather, dtype, ReduceOp::kSum, root);
  add_open_shape(print, shapes, in.count);
  return impl_->engine->collective(
      print, std::max(total(out, dtype), in.count * size_of(dtype)),
      [outgoing, incoming](Context& context) { return pairwise(context, outgoing, incoming); }, call);
}

Group::Handle Group::scatter(std::vector<ConstBuffer> in, Buffer out, DType dtype, int root, const Call& call,
                             const Shapes& shapes) {
  const Members& members = impl_->members();
  check_rank(members, "root", root);
  check_buffer("scatter", out.data, out.count);
  if (members.rank == root) {
    check_list(members, "scatter's input", in.size());
    check_count(members, "scatter's input for this rank", in[static_cast<std::size_t>(root)].count, out.count);
    for (const ConstBuffer& buffer : in) check_buffer("scatter", buffer.data, buffer.count);
    check_apart(members, "scatter", views(in, dtype), {as_const(view(out, dtype))}, as_const(view(out, dtype)));
  } else {
    in.clear();
  }
  std::vector<ConstBytes> outgoing = views(in, dtype);
  outgoing.resize(static_cast<std::size_t>(members.size));
  std::vector<Bytes> incoming(static_cast<std::size_t>(members.size));
  incoming[static_cast<std::size_t>(root)] = view(out, dtype);
  Fingerprint print = fingerprint(OpKind::kScatter, dtype, ReduceOp::kSum, root);
  add_open_shape(print, shapes, out.count);
  return impl_->engine->collective(
      print, std::max(total(in, dtype), out.count * size_of(dtype)),
      [outgoing, incoming](Context& context) { return pairwise(context, outgoing, incoming); }, call);
}

Group::Handle Group::barrier(const Call& call) {
  return impl_->engine->collective(
      fingerprint(OpKind::kBarrier, DType::kUint8), 0, [](Context& context) { return hierarchical_barrier(context); },
      call);
}

}  // namespace smdp
