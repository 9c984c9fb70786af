// Collectives whose output's first dimension is known only at run time. Ranks exchange their sizes first.
#include <algorithm>
#include <numeric>
#include <string>

#include "call_of.h"
#include "kernel.h"
#include "smdp/error.h"

namespace smdp::tensorflow {
namespace {

using Sizes = std::shared_ptr<std::vector<std::int64_t>>;

// The input, seen as rows along its first dimension.
struct Rows {
  std::shared_ptr<TF_Tensor> tensor;
  Shape shape;
  std::size_t elements = 1;  // of one row

  Rows(TF_OpKernelContext* context, const char* what) : tensor(input(context, 0)), shape(shape_of(tensor.get())) {
    if (shape.empty()) {
      throw InvalidArgument("[smdp] " + std::string(what) +
                            " works along the first dimension, but the tensor is a scalar. Reshape it to [1].");
    }
    elements = elements_of(row());
  }
  Shape with(std::int64_t rows) const {
    Shape changed = shape;
    changed.front() = rows;
    return changed;
  }
  // Shape of the blocks of all ranks together, which have so many rows.
  Shapes shapes(const std::vector<std::int64_t>& sizes) const {
    Shapes all;
    for (const std::int64_t size : sizes) all.push_back(with(size));
    return all;
  }
  Shape row() const { return Shape(shape.begin() + 1, shape.end()); }
  const std::byte* data() const { return static_cast<const std::byte*>(TF_TensorData(tensor.get())); }
  DType dtype() const { return dtype_of(tensor.get()); }
  TF_DataType tf_dtype() const { return TF_TensorType(tensor.get()); }
};

// Blocks of rows, one after the other.
template <class B, class Byte>
std::vector<B> blocks(Byte* data, const std::vector<std::int64_t>& rows, const Rows& of) {
  std::vector<B> all;
  for (const std::int64_t count : rows) {
    all.push_back({data, static_cast<std::size_t>(count) * of.elements});
    data += all.back().count * size_of(of.dtype());
  }
  return all;
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::byte* bytes(const std::shared_ptr<TF_Tensor>& tensor) {
  return static_cast<std::byte*>(TF_TensorData(tensor.get()));
}

struct Allgather {
  explicit Allgather(TF_OpKernelConstruction* construction) : call_of(construction) {}
  void run(const RunPtr& run) const {
    const std::shared_ptr<Group> group = call_of.group();
    const Call call = call_of(run->context());
    const auto rows = std::make_shared<Rows>(run->context(), "allgather");
    const Sizes sizes = std::make_shared<std::vector<std::int64_t>>(static_cast<std::size_t>(group->size()));
    std::vector<Buffer> places;
    for (std::int64_t& size : *sizes) places.push_back({&size, 1});
    after(run, group->all_gather({rows->shape.data(), 1}, std::move(places), DType::kInt64, call),
          [run, group, call, rows, sizes] {
            const std::shared_ptr<TF_Tensor> out =
                new_output(run->context(), 0, rows->tf_dtype(), rows->with(sum(*sizes)));
            after(run,
                  group->all_gather({rows->data(), elements_of(rows->shape)}, blocks<Buffer>(bytes(out), *sizes, *rows),
                                    rows->dtype(), call, rows->shapes(*sizes)),
                  [run, rows, out] { run->end(); });
          });
  }
  CallOf call_of;
};

struct Alltoall {
  explicit Alltoall(TF_OpKernelConstruction* construction) : call_of(construction) {}
  void run(const RunPtr& run) const {
    const std::shared_ptr<Group> group = call_of.group();
    const Call call = call_of(run->context());
    const auto rows = std::make_shared<Rows>(run->context(), "alltoall");
    const Sizes sent = splits(run->context(), *group, *rows);
    const Sizes received = std::make_shared<std::vector<std::int64_t>>(sent->size());
    std::vector<ConstBuffer> from;
    std::vector<Buffer> to;
    for (const std::int64_t& size : *sent) from.push_back({&size, 1});
    for (std::int64_t& size : *received) to.push_back({&size, 1});
    after(run, group->all_to_all(std::move(from), std::move(to), DType::kInt64, call),
          [run, group, call, rows, sent, received] {
            const std::shared_ptr<TF_Tensor> out =
                new_output(run->context(), 0, rows->tf_dtype(), rows->with(sum(*received)));
            const Tensor counts =
                new_output(run->context(), 1, TF_INT64, {static_cast<std::int64_t>(received->size())});
            std::copy(received->begin(), received->end(), static_cast<std::int64_t*>(TF_TensorData(counts.get())));
            after(run,
                  group->all_to_all(blocks<ConstBuffer>(rows->data(), *sent, *rows),
                                    blocks<Buffer>(bytes(out), *received, *rows), rows->dtype(), call, {rows->row()}),
                  [run, rows, out] { run->end(); });
          });
  }

  static std::string of_rank(const Group& group) {
    return "[smdp] rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) + ": ";
  }

  // Reads input 1, the number of rows for each rank. If it is empty, all ranks get the same number.
  static Sizes splits(TF_OpKernelContext* context, const Group& group, const Rows& rows) {
    const Tensor given = input(context, 1);
    const auto* values = static_cast<const std::int64_t*>(TF_TensorData(given.get()));
    const auto count = static_cast<std::size_t>(TF_TensorElementCount(given.get()));
    const auto size = static_cast<std::size_t>(group.size());
    const std::int64_t all = rows.shape.front();
    if (count == 0) {
      if (all % group.size() != 0) {
        throw InvalidArgument(
            of_rank(group) + "alltoall of " + std::to_string(all) + " rows between " + std::to_string(size) +
            " ranks: the rows do not divide evenly. Pass splits=[...] with the number for each rank.");
      }
      return std::make_shared<std::vector<std::int64_t>>(size, all / group.size());
    }
    const Sizes sizes = std::make_shared<std::vector<std::int64_t>>(values, values + count);
    const bool is_negative = std::any_of(sizes->begin(), sizes->end(), [](std::int64_t n) { return n < 0; });
    if (count != size || is_negative || sum(*sizes) != all) {
      throw InvalidArgument(of_rank(group) + "alltoall got " + std::to_string(count) + " splits that add up to " +
                            std::to_string(sum(*sizes)) + "; expected " + std::to_string(size) +
                            ", one per rank, none negative, that add up to the tensor's " + std::to_string(all) +
                            " rows.");
    }
    return sizes;
  }
  CallOf call_of;
};

struct Reducescatter {
  explicit Reducescatter(TF_OpKernelConstruction* construction)
      : call_of(construction), op(static_cast<ReduceOp>(attribute(construction, "op"))) {}
  void run(const RunPtr& run) const {
    const std::shared_ptr<Group> group = call_of.group();
    const Call call = call_of(run->context());
    const auto rows = std::make_shared<Rows>(run->context(), "reducescatter");
    // If the rows do not divide evenly, the first ranks get one row more.
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(group->size()), rows->shape.front() / group->size());
    for (std::int64_t i = 0; i < rows->shape.front() % group->size(); ++i) ++sizes[static_cast<std::size_t>(i)];
    const std::int64_t own = sizes[static_cast<std::size_t>(group->rank())];
    const std::shared_ptr<TF_Tensor> out = new_output(run->context(), 0, rows->tf_dtype(), rows->with(own));
    after(run,
          group->reduce_scatter(blocks<ConstBuffer>(rows->data(), sizes, *rows),
                                {bytes(out), static_cast<std::size_t>(own) * rows->elements}, rows->dtype(), op, 1,
                                call, {rows->shape}),
          [run, rows, out] { run->end(); });
  }
  CallOf call_of;
  ReduceOp op;
};

}  // namespace

void define_gather_ops() {
  define_async<Allgather>({"SmdpAllgather",
                           {"tensor: T", "token: resource"},
                           {"gathered: T"},
                           {kMovable, "group: int"},
                           true,
                           unknown_shape});
  define_async<Alltoall>({"SmdpAlltoall",
                          {"tensor: T", "splits: int64", "token: resource"},
                          {"received: T", "received_splits: int64"},
                          {kMovable, "group: int"},
                          true,
                          unknown_shape});
  define_async<Reducescatter>({"SmdpReducescatter",
                               {"tensor: T", "token: resource"},
                               {"reduced: T"},
                               {kReducible, "group: int", "op: int"},
                               true,
                               unknown_shape});
}

}  // namespace smdp::tensorflow
