// How the runs of an op are known to other ranks.
#pragma once

#include <string>
#include <vector>

#include "kernel.h"

namespace smdp::tensorflow {

// What every op has that calls a group. known_as: its name in the program. by_name: TensorFlow may run it before or
// after others, so it meets those of its name. is_inner: it is in a function, which a graph may call in several places.
#define SMDP_CALL_ATTRIBUTES "group: int", "known_as: string = ''", "by_name: bool = false", "is_inner: bool = false"

class CallOf {
 public:
  explicit CallOf(TF_OpKernelConstruction* construction);

  std::shared_ptr<Group> group() const { return find_group(group_); }
  // Of one run. In eager code the thread knows the name, not the op.
  Call operator()(TF_OpKernelContext* context) const;

 private:
  std::int64_t group_;
  std::string name_;
  bool is_by_name_;
};

}  // namespace smdp::tensorflow
