// Log messages of the core: lines on standard error, "[smdp] " before the text. Never stdout.
#pragma once

#include <string>

namespace smdp {

enum class LogLevel { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

// Default: kWarning. Messages above it are dropped.
void set_log_level(LogLevel level);
// Ask first where making the text costs something.
bool is_logged(LogLevel level);
// Any thread.
void log(LogLevel level, const std::string& text);

}  // namespace smdp
