// The process's trace: opened by its first group, closed at the end.
#pragma once

#include <string>

#include "smdp/observability.h"

namespace smdp::trace {

// Makes `directory` if need be. Later calls change nothing. Throws ConfigError.
void open(const std::string& directory, int rank, int size, const std::string& host);
// Writes what is still in memory, and an event that says that nothing is missing before it. Events may
// follow; they end with another such call.
void finish();

}  // namespace smdp::trace
