// What the kernels share: C++ owners for TensorFlow's C objects, and errors on their way to TensorFlow.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smdp/dtype.h"
#include "smdp/group.h"
#include "tf_c_api.h"

namespace smdp::tensorflow {

class Status {
 public:
  Status() : status_(TF_NewStatus()) {}
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  ~Status() { TF_DeleteStatus(status_); }
  operator TF_Status*() const { return status_; }
  // Throws Error if TensorFlow reported one.
  void check() const;

 private:
  TF_Status* status_;
};

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, DeleteTensor>;
using Shape = std::vector<std::int64_t>;

// Holds a reference, as long as it lives: an input that is held is not forwarded.
Tensor input(TF_OpKernelContext* context, int index);
std::int64_t scalar_input(TF_OpKernelContext* context, int index);
Shape shape_of(const TF_Tensor* tensor);
std::size_t elements_of(const Shape& shape);
DType dtype_of(TF_DataType dtype);
inline DType dtype_of(const TF_Tensor* tensor) { return dtype_of(TF_TensorType(tensor)); }

// Output `index` of the input's shape, with the input's values: in the input's memory where nobody else reads it.
Tensor copied_output(TF_OpKernelContext* context, int input_index, int index);
Tensor new_output(TF_OpKernelContext* context, int index, TF_DataType dtype, const Shape& shape);

std::int64_t attribute(TF_OpKernelConstruction* construction, const char* name);
std::vector<std::int64_t> list_attribute(TF_OpKernelConstruction* construction, const char* name);
std::string string_attribute(TF_OpKernelConstruction* construction, const char* name);
bool has_attribute(TF_OpKernelConstruction* construction, const char* name);
bool bool_attribute(TF_OpKernelConstruction* construction, const char* name);
// Throws ClosedError if it is gone.
std::shared_ptr<Group> find_group(std::int64_t id);

// Ends a kernel's run with this error, which is about `what`, if that is known.
void fail(TF_OpKernelContext* context, const std::exception_ptr& error, const std::string& what = {});

// A run of an asynchronous kernel. `done` is called exactly once, by the first end(); after it the context is gone.
class Run {
 public:
  Run(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);
  TF_OpKernelContext* context() const { return context_; }
  void end(const std::exception_ptr& error = nullptr, const std::string& what = {});

 private:
  TF_OpKernelContext* const context_;
  // TensorFlow's callback is a std::function on the stack of its caller, which returns before we are done.
  std::function<void()> done_;
};
using RunPtr = std::shared_ptr<Run>;

// Calls body(); what it throws ends the run.
void guarded(const RunPtr& run, const std::function<void()>& body);
// Once the operation has ended: ends the run with its error, about `what`, or goes on with `next`.
void after(const RunPtr& run, const Group::Handle& operation, std::function<void()> next, const std::string& what = {});

// A kernel is its attributes: K(TF_OpKernelConstruction*) reads them, and K::run() computes.
template <class K>
void* create(TF_OpKernelConstruction* construction) {
  return new K(construction);
}
template <class K>
void destroy(void* kernel) {
  delete static_cast<K*>(kernel);
}
template <class K>
void compute(void* kernel, TF_OpKernelContext* context) {
  try {
    static_cast<K*>(kernel)->run(context);
  } catch (...) {
    fail(context, std::current_exception());
  }
}
template <class K>
void compute_async(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const auto run = std::make_shared<Run>(context, done);
  guarded(run, [&] { static_cast<K*>(kernel)->run(run); });
}

void register_kernel(const char* op, TF_KernelBuilder* builder);
// An op is defined before its kernel is registered. specs: inputs "name: type", then outputs, then attributes.
struct Op {
  const char* name;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  std::vector<const char*> attributes;
  // Never merged with an equal one, never left out.
  bool is_stateful;
  void (*infer_shapes)(TF_ShapeInferenceContext*, TF_Status*);
};
void define(const Op& op);
template <class K>
void define_sync(const Op& op) {
  define(op);
  register_kernel(op.name, TF_NewKernelBuilder(op.name, "CPU", create<K>, compute<K>, destroy<K>));
}
template <class K>
void define_async(const Op& op) {
  define(op);
  register_kernel(op.name, TF_NewAsyncKernelBuilder(op.name, "CPU", create<K>, compute_async<K>, destroy<K>));
}

// Types that can be summed, and those that can be moved.
inline constexpr const char* kReducible =
    "T: {half, bfloat16, float, double, int8, uint8, int16, int32, int64, bool, complex64, complex128}";
inline constexpr const char* kMovable =
    "T: {half, bfloat16, float, double, int8, uint8, int16, uint16, int32, uint32, int64, uint64, bool, complex64, "
    "complex128}";

void same_shape(TF_ShapeInferenceContext* context, TF_Status* status);     // output 0 is like input 0
void unknown_shape(TF_ShapeInferenceContext* context, TF_Status* status);  // of all outputs
void no_shape(TF_ShapeInferenceContext* context, TF_Status* status);       // no outputs

// One per file of ops.
void define_gradient_ops();
void define_collective_ops();
void define_gather_ops();

}  // namespace smdp::tensorflow
