#include "call_of.h"

#include "smdp/call_name.h"

namespace smdp::tensorflow {
namespace {

constexpr const char* kName = "_smdp_known_as";

bool is_set(TF_OpKernelConstruction* construction, const char* name) {
  return has_attribute(construction, name) && bool_attribute(construction, name);
}

}  // namespace

CallOf::CallOf(TF_OpKernelConstruction* construction)
    : group_(attribute(construction, "group")),
      name_(has_attribute(construction, kName) ? string_attribute(construction, kName) : ""),
      is_by_name_(is_set(construction, "_smdp_by_name")) {
  if (!is_set(construction, "_smdp_is_inner")) return;
  // When TensorFlow inlines a function, the names of its nodes begin with the name of the call.
  const TF_StringView node = TF_OpKernelConstruction_GetName(construction);
  name_ = std::string(node.data, node.len) + ": " + name_;
}

Call CallOf::operator()(TF_OpKernelContext* context) const {
  Call call;
  call.async = true;
  call.name = name_.empty() ? call_name() : name_;
  call.by_name = is_by_name_;
  if (!is_by_name_) return call;
  // Iterations of a loop may overtake each other. An inner loop has a new id in each iteration of the outer loop.
  if (const std::uint64_t loop = TF_GetFrameId(context); loop != 0) {
    call.name = "loop " + std::to_string(loop) + " round " + std::to_string(TF_GetIterId(context)) + ": " + call.name;
  }
  return call;
}

}  // namespace smdp::tensorflow
