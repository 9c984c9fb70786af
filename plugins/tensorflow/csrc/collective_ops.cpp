// Collectives whose output has the shape of the input. All ops are stateful and take their group's token, a resource:
// TensorFlow runs those that share one in the order of the program, also through nested functions, conditions and
// loops.
#include <cstring>
#include <string>

#include "kernel.h"

namespace smdp::tensorflow {
namespace {

const Call kAsync{.timeout = std::nullopt, .async = true, .label = {}, .name = {}, .interrupted = {}};

struct Allreduce {
  explicit Allreduce(TF_OpKernelConstruction* construction)
      : group(attribute(construction, "group")), op(static_cast<ReduceOp>(attribute(construction, "op"))) {}
  void run(const RunPtr& run) const {
    const std::shared_ptr<TF_Tensor> out = copied_output(run->context(), 0, 0);
    const Shape shape = shape_of(out.get());
    void* data = TF_TensorData(out.get());
    after(run, find_group(group)->all_reduce(data, data, shape, dtype_of(out.get()), op, 1, kAsync),
          [run, out] { run->end(); });
  }
  std::int64_t group;
  ReduceOp op;
};

struct Broadcast {
  explicit Broadcast(TF_OpKernelConstruction* construction)
      : group(attribute(construction, "group")),
        root(static_cast<int>(attribute(construction, "root"))),
        label(string_attribute(construction, "label")) {}
  void run(const RunPtr& run) const {
    const std::shared_ptr<TF_Tensor> out = copied_output(run->context(), 0, 0);
    const Shape shape = shape_of(out.get());
    Call call = kAsync;
    if (!label.empty()) call.label = [text = label] { return text; };
    after(
        run, find_group(group)->broadcast(TF_TensorData(out.get()), shape, dtype_of(out.get()), root, call),
        [run, out] { run->end(); }, label);
  }
  std::int64_t group;
  int root;
  std::string label;
};

struct Barrier {
  explicit Barrier(TF_OpKernelConstruction* construction) : group(attribute(construction, "group")) {}
  void run(const RunPtr& run) const {
    after(run, find_group(group)->barrier(kAsync), [run] { run->end(); });
  }
  std::int64_t group;
};

}  // namespace

void define_collective_ops() {
  define_async<Allreduce>({"SmdpAllreduce",
                           {"tensor: T", "token: resource"},
                           {"reduced: T"},
                           {kReducible, "group: int", "op: int"},
                           true,
                           same_shape});
  define_async<Broadcast>({"SmdpBroadcast",
                           {"tensor: T", "token: resource"},
                           {"received: T"},
                           {kMovable, "group: int", "root: int", "label: string = ''"},
                           true,
                           same_shape});
  define_async<Barrier>({"SmdpBarrier", {"token: resource"}, {}, {"group: int"}, true, no_shape});
}

}  // namespace smdp::tensorflow
