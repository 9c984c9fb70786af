// The gradients of a step as four ops, so that each gradient is sent as soon as backward has computed it:
//   SmdpGradientBegin    opens a step; it is stateful, so the steps of a program follow each other
//   SmdpGradientReady    passes one gradient, or several small ones, to the reducer and returns at once
//   SmdpGradientFinish   takes the outputs of all SmdpGradientReady, also of unused gradients
//   SmdpGradientMeans    returns the means of some gradients once they are done; it is asynchronous
// Means comes after Finish, because if an error ends a step early, a waiting Means would never be called back. Ready
// and Means are stateless, because stateful ops would run one after the other; `indices` keeps TensorFlow from merging
// equal ones. Reducers are inputs, because TensorFlow keeps a kernel of eager code for every value of an attribute.
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
        "function comes from another process. Call init() and trace the function again.");
  }
  return steps;
}

// A step: its number and that of its GradientSteps. All ops of the step take it, so it lives as long as one may run. If
// an op fails, this rank leaves the step at once, before the other ranks' wait times out.
struct alignas(64) Step {  // TensorFlow copies memory with a smaller alignment
  std::int64_t number;
  std::int64_t steps;
  static void free(void* data, std::size_t, void*) {
    const std::unique_ptr<Step> step(static_cast<Step*>(data));
    const auto found = GradientSteps::find(static_cast<std::uint64_t>(step->steps));
    if (found) found->leave(static_cast<std::uint64_t>(step->number));
  }
};
constexpr std::int64_t kStepSize = 2;

// The step that an op takes as input.
struct Taken {
  Taken(TF_OpKernelContext* context, int index) : tensor(input(context, index)) {
    const auto* values = static_cast<const std::int64_t*>(TF_TensorData(tensor.get()));
    number = static_cast<std::uint64_t>(values[0]);
    steps = find_steps(values[1]);
  }
  Tensor tensor;
  std::uint64_t number;
  std::unique_ptr<GradientSteps> steps;
};

struct Begin {
  explicit Begin(TF_OpKernelConstruction*) {}
  void run(TF_OpKernelContext* context) const {
    const std::int64_t steps = scalar_input(context, 1);
    auto step = std::make_unique<Step>();
    *step = {static_cast<std::int64_t>(find_steps(steps)->begin()), steps};
    const std::size_t bytes = kStepSize * sizeof(std::int64_t);
    const Tensor out(TF_NewTensor(TF_INT64, &kStepSize, 1, step.get(), bytes, Step::free, nullptr));
    step.release();
    const Status status;
    TF_SetOutput(context, 0, out.get(), status);
    status.check();
  }
};

struct Ready {
  explicit Ready(TF_OpKernelConstruction* construction) : indices(list_attribute(construction, "indices")) {}
  void run(TF_OpKernelContext* context) const {
    const auto count = static_cast<int>(indices.size());
    const Taken step(context, count);
    for (int i = 0; i < count; ++i) {
      // Shared with the reducer, which writes the mean to it. The only op that reads it is SmdpGradientMeans.
      const std::shared_ptr<TF_Tensor> held = copied_output(context, i, i);
      const auto index = static_cast<std::size_t>(indices[static_cast<std::size_t>(i)]);
      step.steps->ready(step.number, index, TF_TensorData(held.get()), [held] {});
    }
  }
  std::vector<std::int64_t> indices;
};

// Returns the means of several gradients. Small ones are done at about the same time, and a callback for each would
// cost more than it gains.
struct Means {
  explicit Means(TF_OpKernelConstruction* construction) : indices(list_attribute(construction, "indices")) {}
  void run(const RunPtr& run) const {
    const Taken step(run->context(), static_cast<int>(indices.size()));
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
    for (const std::int64_t index : indices) step.steps->mean(step.number, static_cast<std::size_t>(index), done);
  }
  struct Waiting {
    std::mutex mutex;  // guards the members below
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
  std::vector<std::int64_t> indices;
};

struct Finish {
  explicit Finish(TF_OpKernelConstruction*) {}
  void run(TF_OpKernelContext* context) const {
    const Taken step(context, 1);
    step.steps->finish(step.number);
    const Status status;
    TF_SetOutput(context, 0, step.tensor.get(), status);
    status.check();
  }
};

// Output i has the shape of input i; the last `others` inputs have no output.
template <int others>
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = TF_NewShapeHandle();
  const auto outputs = static_cast<int>(TF_ShapeInferenceContextNumInputs(context)) - others;
  for (int i = 0; i < outputs && TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, i, shape, status);
  }
  TF_DeleteShapeHandle(shape);
}

constexpr const char* kGradients = "T: list({half, bfloat16, float, double, complex64, complex128}) >= 1";

}  // namespace

void define_gradient_ops() {
  define_sync<Begin>(
      {"SmdpGradientBegin", {"token: resource", "steps: int64"}, {"step: int64"}, {}, true, unknown_shape});
  define_sync<Ready>({"SmdpGradientReady",
                      {"gradients: T", "step: int64"},
                      {"held: T"},
                      {kGradients, "indices: list(int)"},
                      false,
                      same_shapes<1>});
  // The gradient function needs factor and group.
  define_async<Means>({"SmdpGradientMeans",
                       {"held: T", "step: int64", "factor: double"},
                       {"means: T"},
                       {kGradients, "indices: list(int)", "group: int"},
                       false,
                       same_shapes<2>});
  define_sync<Finish>({"SmdpGradientFinish",
                       {"token: resource", "step: int64", "held: T"},
                       {"ended: int64"},
                       {kGradients},
                       true,
                       unknown_shape});
}

}  // namespace smdp::tensorflow
