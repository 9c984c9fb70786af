// The arguments of a group's calls: views of buffers, the checks before anything is sent, and the fingerprint that
// ranks compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/local.h"
#include "reduce/reduce.h"
#include "smdp/dtype.h"
#include "smdp/group.h"
#include "transport/fingerprint.h"
#include "transport/members.h"

namespace smdp {

inline const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
inline std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

inline ConstBytes view(const ConstBuffer& buffer, DType dtype) {
  return {bytes(buffer.data), buffer.count * size_of(dtype)};
}
inline Bytes view(const Buffer& buffer, DType dtype) { return {bytes(buffer.data), buffer.count * size_of(dtype)}; }
inline ConstBytes as_const(Bytes block) { return {block.data, block.size}; }

template <class B>
auto views(const std::vector<B>& buffers, DType dtype) {
  std::vector<decltype(view(B{}, dtype))> all;
  for (const B& buffer : buffers) all.push_back(view(buffer, dtype));
  return all;
}

inline std::vector<ConstBytes> const_views(const std::vector<Buffer>& buffers, DType dtype) {
  std::vector<ConstBytes> all;
  for (const Buffer& buffer : buffers) all.push_back(as_const(view(buffer, dtype)));
  return all;
}

template <class B>
std::size_t total(const std::vector<B>& buffers, DType dtype) {
  std::size_t count = 0;
  for (const B& buffer : buffers) count += buffer.count;
  return count * size_of(dtype);
}

template <class B>
std::vector<std::uint64_t> counts_of(const std::vector<B>& buffers) {
  std::vector<std::uint64_t> counts;
  for (const B& buffer : buffers) counts.push_back(buffer.count);
  return counts;
}

void check_buffer(const char* operation, const void* data, std::size_t count);
// what: the argument's name, e.g. "root".
void check_rank(const Members& members, const char* what, int rank);
void check_list(const Members& members, const char* what, std::size_t count);
void check_count(const Members& members, const std::string& what, std::size_t count, std::size_t expected);
void check_reduction(const Members& members, const char* operation, DType dtype, ReduceOp op);

Fingerprint fingerprint(OpKind kind, DType dtype, ReduceOp op = ReduceOp::kSum, int root = -1);
// A list of equal blocks counts as one shape: that of a block or, if one tensor is divided, that of the tensor.
void add_shapes(Fingerprint& print, Shapes shapes, bool is_divided);
// Adds all extents except the first, which may differ between ranks.
void add_open_shape(Fingerprint& print, const Shapes& shapes, std::size_t count);

Reduction reduction_for(DType dtype, ReduceOp op, int size);

}  // namespace smdp
