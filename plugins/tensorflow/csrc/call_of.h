// The name and order by which other ranks recognize the runs of an op.
#pragma once

#include <string>
#include <vector>

#include "kernel.h"

namespace smdp::tensorflow {

// Reads the op's attribute `group`, and attributes that Python adds to the nodes of graphs. The op does not declare
// those, because that would slow down eager code:
// - _smdp_known_as is the node's name in the program.
// - _smdp_by_name means that TensorFlow may run the node before or after others, so ranks match its runs by name.
// - _smdp_is_inner means that the node is in a function, which a graph may call in several places.
class CallOf {
 public:
  explicit CallOf(TF_OpKernelConstruction* construction);

  std::shared_ptr<Group> group() const { return find_group(group_); }
  // Describes one run. In eager code, the name is the thread's, not the op's.
  Call operator()(TF_OpKernelContext* context) const;

 private:
  std::int64_t group_;
  std::string name_;
  bool is_by_name_;
};

}  // namespace smdp::tensorflow
