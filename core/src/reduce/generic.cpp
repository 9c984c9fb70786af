// Runs on any CPU; the reference for the others.
#include "reduce/loops.h"

namespace smdp::kernels {

constexpr Table generic = make_table<PlainConversions<16>>("generic");

}  // namespace smdp::kernels
