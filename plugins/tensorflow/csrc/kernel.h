// Shared by the kernels: C++ owners of TensorFlow's C objects, and the conversion of errors for TensorFlow.
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

// Holds a reference to the input. TensorFlow does not forward an input while it is held.
Tensor input(TF_OpKernelContext* context, int index);
std::int64_t scalar_input(TF_OpKernelContext* context, int index);
Shape shape_of(const TF_Tensor* tensor);
std::size_t elements_of(const Shape& shape);
DType dtype_of(TF_DataType dtype);
inline DType dtype_of(const TF_Tensor* tensor) { return dtype_of(TF_TensorType(tensor)); }

// Returns output `index` with the input's shape and values, in the input's memory if no other op reads that.
Tensor copied_output(TF_OpKernelContext* context, int input_index, int index);
Tensor new_output(TF_OpKernelContext* context, int index, TF_DataType dtype, const Shape& shape);

std::int64_t attribute(TF_OpKernelConstruction* construction, const char* name);
std::vector<std::int64_t> list_attribute(TF_OpKernelConstruction* construction, const char* name);
std::string string_attribute(TF_OpKernelConstruction* construction, const char* name);
bool has_attribute(TF_OpKernelConstruction* construction, const char* name);
bool bool_attribute(TF_OpKernelConstruction* construction, const char* name);
// Throws ClosedError if the group no longer exists.
std::shared_ptr<Group> find_group(std::int64_t id);

// Ends a kernel's run with an error, which is about `what` unless that is empty.
void fail(TF_OpKernelContext* context, const std::exception_ptr& error, const std::string& what = {});

// A run of an asynchronous kernel. The first end() calls `done`, exactly once. The context is invalid after that.
class Run {
 public:
  Run(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);
  TF_OpKernelContext* context() const { return context_; }
  void end(const std::exception_ptr& error = nullptr, const std::string& what = {});

 private:
  TF_OpKernelContext* const context_;
  // A copy, because TensorFlow's callback is a std::function on its caller's stack, and the caller returns earlier.
  std::function<void()> done_;
};
using RunPtr = std::shared_ptr<Run>;

// Calls body(). An exception ends the run.
void guarded(const RunPtr& run, const std::function<void()>& body);
// When the operation has ended, calls `next`, or ends the run with the operation's error, which is about `what`.
void after(const RunPtr& run, const Group::Handle& operation, std::function<void()> next, const std::string& what = {});

// Functions for TensorFlow. The kernel K reads its attributes in K(TF_OpKernelConstruction*) and computes in run().
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
// An op must be defined before its kernel is registered. Inputs, outputs and attributes are "name: type".
struct Op {
  const char* name;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  std::vector<const char*> attributes;
  // Whether TensorFlow must neither merge equal ops nor remove an unused one.
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

// Types that can be reduced, and those that can be sent.
inline constexpr const char* kReducible =
    "T: {half, bfloat16, float, double, int8, uint8, int16, int32, int64, bool, complex64, complex128}";
inline constexpr const char* kMovable =
    "T: {half, bfloat16, float, double, int8, uint8, int16, uint16, int32, uint32, int64, uint64, bool, complex64, "
    "complex128}";

void same_shape(TF_ShapeInferenceContext* context, TF_Status* status);     // output 0 has the shape of input 0
void unknown_shape(TF_ShapeInferenceContext* context, TF_Status* status);  // of all outputs
void no_shape(TF_ShapeInferenceContext* context, TF_Status* status);       // no outputs

// One function per file of ops.
void define_gradient_ops();
void define_collective_ops();
void define_gather_ops();

}  // namespace smdp::tensorflow
