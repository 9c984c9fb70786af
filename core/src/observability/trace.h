// The process's trace: opened by its first group, closed at the end.
#pragma once

#include <string>

#include "smdp/observability.h"

namespace smdp::trace {

// Creates `directory` if necessary. Later calls have no effect. Throws ConfigError.
void open(const std::string& directory, int rank, int size, const std::string& host);
// Writes what is still in memory, and an event which says that nothing before it is missing. Events may follow, and end
// with another such call.
void finish();

}  // namespace smdp::trace
