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
  // Where TensorFlow puts a function's nodes in place of its call, their names begin with that of the call.
  const TF_StringView node = TF_OpKernelConstruction_GetName(construction);
  name_ = std::string(node.data, node.len) + ": " + name_;
}

Call CallOf::operator()(TF_OpKernelContext* context) const {
  Call call;
  call.async = true;
  call.name = name_.empty() ? call_name() : name_;
  call.by_name = is_by_name_;
  if (!is_by_name_) return call;
  // Rounds of a loop may overtake each other. A loop in a loop is another one in each round of the outer one.
  if (const std::uint64_t loop = TF_GetFrameId(context); loop != 0) {
    call.name = "loop " + std::to_string(loop) + " round " + std::to_string(TF_GetIterId(context)) + ": " + call.name;
  }
  return call;
}

}  // namespace smdp::tensorflow
