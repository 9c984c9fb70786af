// Collectives whose output has the shape of the input. All ops are stateful and take their group's token, which is a
// resource. TensorFlow runs ops that share a resource in the order of the program, also through nested functions,
// conditions and loops. A graph of TensorFlow 1 runs ops in any order, so ranks match them by name there.
#include <cstring>
#include <string>

#include "call_of.h"
#include "kernel.h"

namespace smdp::tensorflow {
namespace {

struct Allreduce {
  explicit Allreduce(TF_OpKernelConstruction* construction)
      : call(construction), op(static_cast<ReduceOp>(attribute(construction, "op"))) {}
  void run(const RunPtr& run) const {
    const std::shared_ptr<TF_Tensor> out = copied_output(run->context(), 0, 0);
    const Shape shape = shape_of(out.get());
    void* data = TF_TensorData(out.get());
    after(run, call.group()->all_reduce(data, data, shape, dtype_of(out.get()), op, 1, call(run->context())),
          [run, out] { run->end(); });
  }
  CallOf call;
  ReduceOp op;
};

struct Broadcast {
  explicit Broadcast(TF_OpKernelConstruction* construction)
      : call(construction),
        root(static_cast<int>(attribute(construction, "root"))),
        label(string_attribute(construction, "label")) {}
  void run(const RunPtr& run) const {
    const std::shared_ptr<TF_Tensor> out = copied_output(run->context(), 0, 0);
    const Shape shape = shape_of(out.get());
    Call labeled = call(run->context());
    if (!label.empty()) labeled.label = [text = label] { return text; };
    after(
        run, call.group()->broadcast(TF_TensorData(out.get()), shape, dtype_of(out.get()), root, labeled),
        [run, out] { run->end(); }, label);
  }
  CallOf call;
  int root;
  std::string label;
};

struct Barrier {
  explicit Barrier(TF_OpKernelConstruction* construction) : call(construction) {}
  void run(const RunPtr& run) const {
    after(run, call.group()->barrier(call(run->context())), [run] { run->end(); });
  }
  CallOf call;
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
