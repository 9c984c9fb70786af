#include "kernel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "smdp/error.h"

namespace smdp::tensorflow {
namespace {

TF_Code code_of(const std::exception_ptr& error, std::string& text) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLostError& caught) {
    text = caught.what();
    return TF_ABORTED;  // TensorFlow would replace "unavailable" by its own error
  } catch (const TimeoutError& caught) {
    text = caught.what();
    return TF_DEADLINE_EXCEEDED;
  } catch (const MismatchError& caught) {
    text = caught.what();
    return TF_INVALID_ARGUMENT;
  } catch (const InvalidArgument& caught) {
    text = caught.what();
    return TF_INVALID_ARGUMENT;
  } catch (const ClosedError& caught) {
    text = caught.what();
    return TF_ABORTED;
  } catch (const std::exception& caught) {
    text = caught.what();
    return TF_INTERNAL;
  }
}

}  // namespace

void Status::check() const {
  if (TF_GetCode(status_) != TF_OK) throw Error(TF_Message(status_));
}

Tensor input(TF_OpKernelContext* context, int index) {
  const Status status;
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, index, &tensor, status);
  status.check();
  return Tensor(tensor);
}

std::int64_t scalar_input(TF_OpKernelContext* context, int index) {
  return *static_cast<const std::int64_t*>(TF_TensorData(input(context, index).get()));
}

Shape shape_of(const TF_Tensor* tensor) {
  Shape shape;
  for (int i = 0; i < TF_NumDims(tensor); ++i) shape.push_back(TF_Dim(tensor, i));
  return shape;
}

std::size_t elements_of(const Shape& shape) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return count;
}

DType dtype_of(TF_DataType dtype) {
  switch (dtype) {
    case TF_FLOAT:
      return DType::kFloat32;
    case TF_DOUBLE:
      return DType::kFloat64;
    case TF_INT32:
      return DType::kInt32;
    case TF_UINT8:
      return DType::kUint8;
    case TF_INT16:
      return DType::kInt16;
    case TF_INT8:
      return DType::kInt8;
    case TF_COMPLEX64:
      return DType::kComplex64;
    case TF_INT64:
      return DType::kInt64;
    case TF_BOOL:
      return DType::kBool;
    case TF_BFLOAT16:
      return DType::kBfloat16;
    case TF_UINT16:
      return DType::kUint16;
    case TF_COMPLEX128:
      return DType::kComplex128;
    case TF_HALF:
      return DType::kFloat16;
    case TF_UINT32:
      return DType::kUint32;
    case TF_UINT64:
      return DType::kUint64;
  }
  throw InvalidArgument("[smdp] tensors of TensorFlow's type number " + std::to_string(dtype) + " are not supported.");
}

Tensor copied_output(TF_OpKernelContext* context, int input_index, int index) {
  Shape shape;
  {
    const Tensor in = input(context, input_index);
    shape = shape_of(in.get());
  }
  const Status status;
  int forwarded = -1;
  Tensor out(TF_ForwardInputOrAllocateOutput(context, &input_index, 1, index, shape.data(),
                                             static_cast<int>(shape.size()), &forwarded, status));
  status.check();
  if (forwarded != input_index) {
    const Tensor in = input(context, input_index);
    const std::size_t bytes = TF_TensorByteSize(in.get());
    if (bytes != 0) std::memcpy(TF_TensorData(out.get()), TF_TensorData(in.get()), bytes);
  }
  return out;
}

Tensor new_output(TF_OpKernelContext* context, int index, TF_DataType dtype, const Shape& shape) {
  const Status status;
  Tensor out(TF_AllocateOutput(context, index, dtype, shape.data(), static_cast<int>(shape.size()),
                               elements_of(shape) * size_of(dtype_of(dtype)), status));
  status.check();
  return out;
}

std::int64_t attribute(TF_OpKernelConstruction* construction, const char* name) {
  const Status status;
  std::int64_t value = 0;
  TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  return value;
}

std::vector<std::int64_t> list_attribute(TF_OpKernelConstruction* construction, const char* name) {
  const Status status;
  std::int32_t size = 0;
  std::int32_t total = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, name, &size, &total, status);
  std::vector<std::int64_t> values(static_cast<std::size_t>(std::max(size, 0)));
  if (TF_GetCode(status) == TF_OK) {
    TF_OpKernelConstruction_GetAttrInt64List(construction, name, values.data(), size, status);
  }
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  return values;
}

std::string string_attribute(TF_OpKernelConstruction* construction, const char* name) {
  const Status status;
  std::int32_t size = 0;
  std::int32_t length = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, name, &size, &length, status);
  std::string value(static_cast<std::size_t>(std::max(length, 0)), '\0');
  if (TF_GetCode(status) == TF_OK) {
    TF_OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(), status);
  }
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  return value;
}

bool has_attribute(TF_OpKernelConstruction* construction, const char* name) {
  const Status status;
  return TF_OpKernelConstruction_HasAttr(construction, name, status) && TF_GetCode(status) == TF_OK;
}

bool bool_attribute(TF_OpKernelConstruction* construction, const char* name) {
  const Status status;
  unsigned char value = 0;
  TF_OpKernelConstruction_GetAttrBool(construction, name, &value, status);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  return value != 0;
}

std::shared_ptr<Group> find_group(std::int64_t id) {
  std::shared_ptr<Group> group = Group::find(static_cast<std::uint64_t>(id));
  if (!group) {
    throw ClosedError(
        "[smdp] the group that this function was traced with is gone: smdp was shut down, or the "
        "function comes from another process. Call init() and trace the function again.");
  }
  return group;
}

void fail(TF_OpKernelContext* context, const std::exception_ptr& error, const std::string& what) {
  const Status status;
  std::string text;
  const TF_Code code = code_of(error, text);
  if (text.find(what) == std::string::npos) text += " This call was for " + what + ".";
  TF_SetStatus(status, code, text.c_str());
  TF_OpKernelContext_Failure(context, status);
}

Run::Run(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done)
    : context_(context), done_(*reinterpret_cast<std::function<void()>*>(done)) {}

void Run::end(const std::exception_ptr& error, const std::string& what) {
  std::function<void()> done = std::exchange(done_, nullptr);
  if (!done) return;
  if (error) fail(context_, error, what);
  TF_RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&done));
}

void guarded(const RunPtr& run, const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    run->end(std::current_exception());
  }
}

void after(const RunPtr& run, const Group::Handle& operation, std::function<void()> next, const std::string& what) {
  operation->then([run, operation, next = std::move(next), what] {
    if (const std::exception_ptr error = operation->error()) return run->end(error, what);
    guarded(run, next);
  });
}

void register_kernel(const char* op, TF_KernelBuilder* builder) {
  const Status status;
  TF_RegisterKernelBuilder(op, builder, status);
  status.check();
}

void define(const Op& op) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(op.name);
  for (const char* spec : op.inputs) TF_OpDefinitionBuilderAddInput(builder, spec);
  for (const char* spec : op.outputs) TF_OpDefinitionBuilderAddOutput(builder, spec);
  for (const char* spec : op.attributes) TF_OpDefinitionBuilderAddAttr(builder, spec);
  if (op.is_stateful) TF_OpDefinitionBuilderSetIsStateful(builder, true);  // the function ignores its argument
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, op.infer_shapes);
  const Status status;
  TF_RegisterOpDefinition(builder, status);
  status.check();
}

void same_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  TF_DeleteShapeHandle(shape);
}

void unknown_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void no_shape(TF_ShapeInferenceContext*, TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

}  // namespace smdp::tensorflow
