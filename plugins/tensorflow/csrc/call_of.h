// How the runs of an op are known to other ranks.
#pragma once

#include <string>
#include <vector>

#include "kernel.h"

namespace smdp::tensorflow {

// Made of the attribute `group`, and of those that Python gives the nodes of a graph beside an op's own, which would
// cost eager code time. _smdp_known_as: the node's name in the program. _smdp_by_name: TensorFlow may run it before or
// after others, so it meets those of its name. _smdp_is_inner: it is in a function, which a graph may call in several
// places.
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
