#include "collectives/group_arguments.h"

#include <algorithm>
#include <string>
#include <vector>

#include "smdp/error.h"

namespace smdp {

void check_buffer(const char* operation, const void* data, std::size_t count) {
  if (data == nullptr && count != 0) {
    throw InvalidArgument(std::string("[smdp] ") + operation + ": a buffer of " + std::to_string(count) +
                          " elements has a null pointer.");
  }
}

void check_rank(const Members& members, const char* what, int rank) {
  if (rank >= 0 && rank < members.size) return;
  throw InvalidArgument(members.prefix() + what + " is " + std::to_string(rank) + "; allowed: 0 to " +
                        std::to_string(members.size - 1) + ".");
}

void check_list(const Members& members, const char* what, std::size_t count) {
  if (count == static_cast<std::size_t>(members.size)) return;
  throw InvalidArgument(members.prefix() + what + " has " + std::to_string(count) +
                        " buffers; it needs one per rank, " + std::to_string(members.size) + ".");
}

void check_count(const Members& members, const std::string& what, std::size_t count, std::size_t expected) {
  if (count == expected) return;
  throw InvalidArgument(members.prefix() + what + " has " + std::to_string(count) + " elements; it needs " +
                        std::to_string(expected) + ".");
}

void check_reduction(const Members& members, const char* operation, DType dtype, ReduceOp op) {
  if (is_supported(dtype, op)) return;
  throw InvalidArgument(members.prefix() + operation + ": " + name_of(op) + " is not defined on " + name_of(dtype) +
                        ". Convert the data to a type that supports it, such as " +
                        (is_supported(DType::kFloat32, op) ? "float32." : "int64."));
}

Fingerprint fingerprint(OpKind kind, DType dtype, ReduceOp op, int root) {
  Fingerprint print;
  print.kind = kind;
  print.dtype = dtype;
  print.op = op;
  print.root = root;
  return print;
}

void add_shapes(Fingerprint& print, Shapes shapes, bool is_divided) {
  const bool is_even =
      std::all_of(shapes.begin(), shapes.end(), [&](const auto& shape) { return shape == shapes.front(); });
  if (shapes.empty()) return;
  if (!is_even) {
    print.add_shapes(shapes);
    return;
  }
  std::vector<std::int64_t>& shape = shapes.front();
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;  // an empty buffer has no shape to compare
  if (is_divided && shapes.size() > 1) {
    const auto blocks = static_cast<std::int64_t>(shapes.size());
    if (shape.empty()) {
      shape.push_back(blocks);
    } else {
      shape.front() *= blocks;
    }
  }
  print.add_shape(shape);
}

void add_open_shape(Fingerprint& print, const Shapes& shapes, std::size_t count) {
  if (shapes.empty() || count == 0) return;
  std::vector<std::int64_t> shape = shapes.front();
  if (!shape.empty()) shape.front() = 0;
  print.add_shape(shape);
}

Reduction reduction_for(DType dtype, ReduceOp op, int size) {
  return {dtype, op, op == ReduceOp::kAvg ? static_cast<std::uint32_t>(size) : 1U};
}

}  // namespace smdp
