// GPipe (Huang et al., arXiv 1811.06965), SMP's "simple": all forwards, then all backwards. A rank with several virtual
// stages takes them breadth first.
#include "pipeline/schedules/schedules.h"

namespace smdp::pipeline {

Schedule gpipe(const GenerateOptions& options) { return breadth_first(blank("gpipe", Placement::kLoop, options)); }

}  // namespace smdp::pipeline
