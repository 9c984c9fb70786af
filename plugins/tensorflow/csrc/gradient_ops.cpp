// The gradients of a step, as four ops, so that each is sent as soon as backward has it:
//   SmdpGradientBegin    opens a step; stateful, so the steps of a program follow each other
//   SmdpGradientReady    hands one gradient, or several small ones, to the reducer and returns at once
//   SmdpGradientMeans    gives the means of some once they are there; asynchronous
//   SmdpGradientFinish   takes what every SmdpGradientReady gives, also of gradients that nobody uses
// Means come after Finish: one that waited in a step that an error ends early would never be called back. Ready and
// Means are stateless: stateful ops would run one after the other. `indices` keep equal ones apart.
#include <memory>
#include <mutex>

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

// The number of a step. All ops of the step take it, so it lives as long as they may run: where one of them fails, the
// step is left then, not when the others' wait for it has timed out.
struct alignas(64) Number {  // TensorFlow copies what is aligned to less
  std::int64_t step;
  std::int64_t steps;
  static void free(void* data, std::size_t, void*) {
    const std::unique_ptr<Number> number(static_cast<Number*>(data));
    const auto steps = GradientSteps::find(static_cast<std::uint64_t>(number->steps));
    if (steps) steps->leave(static_cast<std::uint64_t>(number->step));
  }
};

struct Begin {
  explicit Begin(TF_OpKernelConstruction* construction) : steps(attribute(construction, "steps")) {}
  void run(TF_OpKernelContext* context) const {
    auto number = std::make_unique<Number>();
    *number = {static_cast<std::int64_t>(find_steps(steps)->begin()), steps};
    const Tensor out(TF_NewTensor(TF_INT64, nullptr, 0, number.get(), sizeof number->step, Number::free, nullptr));
    number.release();
    const Status status;
    TF_SetOutput(context, 0, out.get(), status);
    status.check();
  }
  std::int64_t steps;
};

struct Ready {
  explicit Ready(TF_OpKernelConstruction* construction)
      : steps(attribute(construction, "steps")), indices(list_attribute(construction, "indices")) {}
  void run(TF_OpKernelContext* context) const {
    const auto count = static_cast<int>(indices.size());
    const auto number = static_cast<std::uint64_t>(scalar_input(context, count));
    const std::unique_ptr<GradientSteps> found = find_steps(steps);
    for (int i = 0; i < count; ++i) {
      // Shared with the reducer, which writes the mean to it. The only op that reads it is SmdpGradientMeans.
      const std::shared_ptr<TF_Tensor> held = copied_output(context, i, i);
      const auto index = static_cast<std::size_t>(indices[static_cast<std::size_t>(i)]);
      found->ready(number, index, TF_TensorData(held.get()), [held] {});
    }
  }
  std::int64_t steps;
  std::vector<std::int64_t> indices;
};

// Of several gradients: small ones are done at about the same time, and a callback for each would cost more than it
// gains.
struct Means {
  explicit Means(TF_OpKernelConstruction* construction)
      : steps(attribute(construction, "steps")), indices(list_attribute(construction, "indices")) {}
  void run(const RunPtr& run) const {
    const auto number = static_cast<std::uint64_t>(scalar_input(run->context(), static_cast<int>(indices.size())));
    const auto waiting = std::make_shared<Waiting>();
    waiting->left = indices.size();
    const auto done = [run, waiting, count = indices.size()](std::exception_ptr error) {
      {
        const std::lock_guard lock(waiting->mutex);
        if (error) waiting->failure = error;
        if (--waiting->left != 0) return;
      }
      give(run, count, waiting->failure);
    };
    const std::unique_ptr<GradientSteps> found = find_steps(steps);
    for (const std::int64_t index : indices) found->mean(number, static_cast<std::size_t>(index), done);
  }
  struct Waiting {
    std::mutex mutex;  // guards all below
    std::size_t left = 0;
    std::exception_ptr failure;
  };
  static void give(const RunPtr& run, std::size_t count, const std::exception_ptr& failure) {
    if (failure) return run->end(failure);
    guarded(run, [&] {
      const Status status;
      for (int i = 0; i < static_cast<int>(count); ++i) {
        TF_SetOutput(run->context(), i, input(run->context(), i).get(), status);
        status.check();
      }
      run->end();
    });
  }
  std::int64_t steps;
  std::vector<std::int64_t> indices;
};

struct Finish {
  explicit Finish(TF_OpKernelConstruction* construction) : steps(attribute(construction, "steps")) {}
  void run(TF_OpKernelContext* context) const {
    const std::int64_t number = scalar_input(context, 1);
    find_steps(steps)->finish(static_cast<std::uint64_t>(number));
    const Tensor ended = new_output(context, 0, TF_INT64, {});
    *static_cast<std::int64_t*>(TF_TensorData(ended.get())) = number;
  }
  std::int64_t steps;
};

// Output i is like input i.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = TF_NewShapeHandle();
  const auto outputs = static_cast<int>(TF_ShapeInferenceContextNumInputs(context)) - 1;
  for (int i = 0; i < outputs && TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, i, shape, status);
  }
  TF_DeleteShapeHandle(shape);
}

constexpr const char* kGradients = "T: list({half, bfloat16, float, double, complex64, complex128}) >= 1";

}  // namespace

void define_gradient_ops() {
  define_sync<Begin>({"SmdpGradientBegin", {"token: resource"}, {"step: int64"}, {"steps: int"}, true, scalar_shape});
  define_sync<Ready>({"SmdpGradientReady",
                      {"gradients: T", "step: int64"},
                      {"held: T"},
                      {kGradients, "steps: int", "indices: list(int)"},
                      false,
                      same_shapes});
  define_async<Means>({"SmdpGradientMeans",
                       {"held: T", "step: int64"},
                       {"means: T"},
                       {kGradients, "steps: int", "indices: list(int)"},
                       false,
                       same_shapes});
  define_sync<Finish>({"SmdpGradientFinish",
                       {"token: resource", "step: int64", "held: T"},
                       {"ended: int64"},
                       {kGradients, "steps: int"},
                       true,
                       scalar_shape});
}

}  // namespace smdp::tensorflow
