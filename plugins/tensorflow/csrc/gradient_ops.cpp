// The gradients of a step, as four ops, so that each is sent as soon as backward has it:
//   SmdpGradientBegin    opens a step; stateful, so the steps of a program follow each other
//   SmdpGradientReady    hands one gradient to the reducer and returns at once
//   SmdpGradientMean     gives its mean once it is there; asynchronous
//   SmdpGradientFinish   comes after every SmdpGradientReady, also of gradients that nobody uses
// Ready and Mean are stateless: stateful ops would run one after the other. `index` keeps equal ones apart.
#include "kernel.h"
#include "smdp/error.h"
#include "smdp/gradient_steps.h"

namespace smdp::tensorflow {
namespace {

std::unique_ptr<GradientSteps> find_steps(std::int64_t id) {
  std::unique_ptr<GradientSteps> steps = GradientSteps::find(static_cast<std::uint64_t>(id));
  if (!steps) {
    throw ClosedError(
        "[smdp] the gradients that this function was traced with are gone: smdp was shut down, or the "
        "function comes from another process. Call init() and trace it anew.");
  }
  return steps;
}

struct Begin {
  explicit Begin(TF_OpKernelConstruction* construction) : steps(attribute(construction, "steps")) {}
  void run(TF_OpKernelContext* context) const {
    const Tensor number = new_output(context, 0, TF_INT64, {});
    *static_cast<std::int64_t*>(TF_TensorData(number.get())) = static_cast<std::int64_t>(find_steps(steps)->begin());
  }
  std::int64_t steps;
};

struct Ready {
  explicit Ready(TF_OpKernelConstruction* construction)
      : steps(attribute(construction, "steps")), index(attribute(construction, "index")) {}
  void run(TF_OpKernelContext* context) const {
    const auto number = static_cast<std::uint64_t>(scalar_input(context, 1));
    // Shared with the reducer, which writes the mean to it. The only op that reads it is SmdpGradientMean.
    const std::shared_ptr<TF_Tensor> held = copied_output(context, 0, 0);
    find_steps(steps)->ready(number, static_cast<std::size_t>(index), TF_TensorData(held.get()), [held] {});
  }
  std::int64_t steps;
  std::int64_t index;
};

struct Mean {
  explicit Mean(TF_OpKernelConstruction* construction)
      : steps(attribute(construction, "steps")), index(attribute(construction, "index")) {}
  void run(const RunPtr& run) const {
    const auto number = static_cast<std::uint64_t>(scalar_input(run->context(), 1));
    find_steps(steps)->mean(number, static_cast<std::size_t>(index), [run](std::exception_ptr error) {
      if (error) return run->end(error);
      guarded(run, [&] {
        const Status status;
        TF_SetOutput(run->context(), 0, input(run->context(), 0).get(), status);
        status.check();
        run->end();
      });
    });
  }
  std::int64_t steps;
  std::int64_t index;
};

struct Finish {
  explicit Finish(TF_OpKernelConstruction* construction) : steps(attribute(construction, "steps")) {}
  void run(TF_OpKernelContext* context) const {
    find_steps(steps)->finish(static_cast<std::uint64_t>(scalar_input(context, 0)));
  }
  std::int64_t steps;
};

constexpr const char* kGradient = "T: {half, bfloat16, float, double, complex64, complex128}";

}  // namespace

void define_gradient_ops() {
  define_sync<Begin>({"SmdpGradientBegin", {}, {"step: int64"}, {"steps: int"}, true, scalar_shape});
  define_sync<Ready>({"SmdpGradientReady",
                      {"gradient: T", "step: int64"},
                      {"held: T"},
                      {kGradient, "steps: int", "index: int"},
                      false,
                      same_shape});
  define_async<Mean>({"SmdpGradientMean",
                      {"held: T", "step: int64"},
                      {"mean: T"},
                      {kGradient, "steps: int", "index: int"},
                      false,
                      same_shape});
  define_sync<Finish>({"SmdpGradientFinish", {"step: int64"}, {}, {"steps: int"}, true, no_shape});
}

}  // namespace smdp::tensorflow
