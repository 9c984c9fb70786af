// The CUDA driver, loaded when a device is first used: smdp is built, and runs, without it.
#pragma once

#include <cstddef>

namespace smdp::cuda {

using Address = unsigned long long;  // CUdeviceptr
using Handle = void*;                // CUcontext, CUstream, CUevent, or the runtime API's equivalents

// Functions of cuda.h by their names; each returns 0 or an error number.
struct Driver {
  int (*init)(unsigned);
  int (*get_device)(int*, int);
  int (*retain_context)(Handle*, int);
  int (*release_context)(int);
  int (*push_context)(Handle);
  int (*pop_context)(Handle*);
  int (*create_stream)(Handle*, unsigned);
  int (*destroy_stream)(Handle);
  int (*wait_in_stream)(Handle, Handle, unsigned);
  int (*create_event)(Handle*, unsigned);
  int (*destroy_event)(Handle);
  int (*record_event)(Handle, Handle);
  int (*synchronize_event)(Handle);
  int (*allocate)(Address*, std::size_t);
  int (*free)(Address);
  int (*clear)(Address, unsigned char, std::size_t, Handle);
  int (*pin)(void*, std::size_t, unsigned);
  int (*unpin)(void*);
  int (*copy_within)(Address, Address, std::size_t, Handle);
  int (*copy_to_host)(void*, Address, std::size_t, Handle);
  int (*copy_to_device)(Address, const void*, std::size_t, Handle);
  int (*error_name)(int, const char**);

  // Returns the process's driver. Throws Error if there is none, or if it finds no device.
  static const Driver& instance();
  // Throws Error for any result but 0. what: the call that returned it.
  void check(int result, const char* what) const;
};

}  // namespace smdp::cuda
