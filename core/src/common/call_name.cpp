#include "smdp/call_name.h"

#include <utility>

namespace smdp {
namespace {

thread_local std::string name_of_calls;

}  // namespace

void set_call_name(std::string name) { name_of_calls = std::move(name); }
const std::string& call_name() { return name_of_calls; }

}  // namespace smdp
