#include "smdp/info.h"

#include "common/cores.h"
#include "reduce/reduce.h"

namespace smdp {

std::string active_kernel() { return kernel_name(); }
std::vector<std::string> kernels() { return available_kernels(); }
int core_count() { return usable_cores(); }

}  // namespace smdp
