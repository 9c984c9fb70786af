// Loaded by tf.load_op_library: ops and kernels must be registered when dlopen returns.
#include <cstdio>
#include <exception>

#include "kernel.h"

namespace {

__attribute__((constructor)) void define_all() {
  try {
    smdp::tensorflow::define_gradient_ops();
    smdp::tensorflow::define_collective_ops();
    smdp::tensorflow::define_gather_ops();
  } catch (const std::exception& error) {
    // Python notices that ops are missing and warns.
    std::fprintf(stderr, "[smdp] this TensorFlow rejected smdp's ops: %s\n", error.what());
  }
}

}  // namespace
